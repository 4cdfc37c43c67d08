#include "apps/expert_record.h"

#include <CLI/CLI.hpp>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/expert_store.h"
#include "dsv4/model/expert_counts.h"
#include "dsv4/model/model.h"

namespace dsv4::apps {
namespace {

void check_device(const ExpertRecordOptions& options, const std::string& device, bool fetches) {
  if (is_cpu(device)) return;
  if (!options.trace.empty())
    fail(ErrorCode::kUnsupported,
         "--experts-trace is written by steps on the CPU, of a whole model: give --device {}",
         "cpu");
  if (!options.counts.empty() && !fetches)
    fail(ErrorCode::kUnsupported,
         "--experts-counts-out: uses are counted on the CPU (--device {}), and on a GPU by decode "
         "steps of run, serve and bench with --experts-memory",
         "cpu");
}

void write_counts(const std::vector<std::vector<int64_t>>& uses, AtomicFile& file) {
  const std::string text = expert_counts_text(uses);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace

void add_expert_record(CLI::App& command, ExpertRecordOptions& options) {
  CLI::Option* const trace =
      command
          .add_option("--experts-trace", options.trace,
                      "write the experts that every token chooses, for tools/expert_trace.py")
          ->option_text("FILE");
  CLI::Option* const counts =
      command
          .add_option("--experts-counts-out", options.counts,
                      "write how often each expert is used, for --experts-counts")
          ->option_text("FILE");
  if (CLI::Option* const check = command.get_option_no_throw("--check-numbers")) {
    trace->excludes(check);
    counts->excludes(check);
  }
}

std::unique_ptr<AtomicFile> open_counts_file(const std::string& file) {
  if (file.empty()) return nullptr;
  if (is_present(file))
    fail(ErrorCode::kBadInput, "{} exists: give another file for the uses of experts",
         printable(file, kMaxPath));
  return std::make_unique<AtomicFile>(file);
}

void require_counted_steps(const Model& model) {
  if (model.device() != nullptr && model.expert_store() == nullptr)
    fail(ErrorCode::kUnsupported,
         "--experts-counts-out: all experts have their place in GPU memory, where nothing counts "
         "their uses: give {}",
         "a smaller --experts-memory");
}

void write_fetched_counts(const Model& model, AtomicFile& file) {
  write_counts(model.expert_store()->read_totals(), file);
}

ExpertRecord::ExpertRecord(const ExpertRecordOptions& options, const std::string& device,
                           bool fetches, const ModelConfig& config) {
  if (!options.wanted()) return;
  check_device(options, device, fetches);
  counts_ = open_counts_file(options.counts);
  if (is_cpu(device)) trace_ = std::make_shared<ExpertTrace>(options.trace, config);
}

void ExpertRecord::begin(const Model& model) const {
  if (counts_ != nullptr) require_counted_steps(model);
}

void ExpertRecord::finish(const Model& model) const {
  if (trace_ != nullptr) trace_->finish();
  if (counts_ == nullptr) return;
  trace_ == nullptr ? write_fetched_counts(model, *counts_)
                    : write_counts(trace_->uses(), *counts_);
}

}  // namespace dsv4::apps
