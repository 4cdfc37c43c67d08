#include "dsv4/engine/expert_trace.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4 {
namespace {

constexpr uint32_t kVersion = 1;

std::FILE* create(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "wbxe");
  if (file != nullptr) return file;
  if (errno == EEXIST)
    fail(ErrorCode::kBadInput, "{} exists: give another file for the trace of experts", path);
  fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace

ExpertTrace::ExpertTrace(const std::string& path, const ModelConfig& config)
    : path_(path),
      layers_(config.num_layers),
      file_(path.empty() ? nullptr : create(path)),
      uses_(static_cast<size_t>(layers_),
            std::vector<int64_t>(static_cast<size_t>(config.num_experts))) {
  const uint32_t header[] = {kVersion, static_cast<uint32_t>(layers_),
                             static_cast<uint32_t>(config.num_experts),
                             static_cast<uint32_t>(config.experts_per_token)};
  write("dsv4xtrc", 8);
  write(header, sizeof(header));
}

void ExpertTrace::begin_step(std::vector<int64_t> sequences) {
  sequences_ = std::move(sequences);
  choices_.clear();
  seen_ = 0;
}

void ExpertTrace::observe(const OpCall& call) {
  call.run();
  const ExpertsArgs* args = call.args_of(experts);
  // What comes after the step's layers is a pass of a drafter.
  if (args == nullptr || args->experts.empty() || seen_ == layers_) return;
  const int64_t tokens = args->experts.dim(0), k = args->experts.dim(1);
  DSV4_CHECK(tokens == std::ssize(sequences_), "choices of {} tokens in a step of {}", tokens,
             sequences_.size());
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < k; ++j)
      choices_.push_back(static_cast<uint16_t>(args->experts.row<int32_t>(t)[j]));
  if (++seen_ < layers_) return;
  write_step();
  count_step();
}

void ExpertTrace::write_step() {
  const auto tokens = static_cast<uint32_t>(sequences_.size());
  write(&tokens, sizeof(tokens));
  write(sequences_.data(), sequences_.size() * sizeof(int64_t));
  write(choices_.data(), choices_.size() * sizeof(uint16_t));
}

void ExpertTrace::count_step() {
  const size_t of_layer = choices_.size() / uses_.size();
  for (size_t i = 0; i < choices_.size(); ++i) ++uses_[i / of_layer].at(choices_[i]);
}

void ExpertTrace::write(const void* data, size_t bytes) {
  if (file_ == nullptr || error_ != 0 || bytes == 0) return;
  if (std::fwrite(data, 1, bytes, file_.get()) != bytes) error_ = errno;
}

void ExpertTrace::finish() {
  if (file_ != nullptr && std::fflush(file_.get()) != 0 && error_ == 0) error_ = errno;
  if (error_ != 0)
    fail(ErrorCode::kIo, "cannot write {}: {}; the trace of experts ends there", path_,
         std::strerror(error_));
}

}  // namespace dsv4
