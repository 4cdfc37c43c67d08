#include "dsv4/quality/imatrix_collector.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/model/weight_table.h"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

// Adds the squares of a row [groups * k], group by group.
void add_row(ImatrixCollector::Sums& sums, const std::vector<float>& row) {
  const size_t k = sums.squares.size();
  for (size_t first = 0; first < row.size(); first += k) {
    for (size_t j = 0; j < k; ++j)
      sums.squares[j] += static_cast<double>(row[first + j]) * static_cast<double>(row[first + j]);
    ++sums.rows;
  }
}

// Row t of x [T, n] in f32: floats, or codes with one scale per 128 columns of each group of k.
void load_row(const LinearArgs& args, int64_t t, std::vector<float>& row) {
  if (args.x.dtype != DType::kE4M3)
    return cpu::load(args.x, t * args.x.row_stride(), std::ssize(row), row.data());
  const int64_t k = args.weight.k, scales = args.x_scale.dim(1) / args.groups;
  for (int64_t i = 0; i < std::ssize(row); ++i) {
    const int64_t at = (i / k) * scales + i % k / kActivationGroup;
    row[static_cast<size_t>(i)] =
        e4m3_to_f32(args.x.row<uint8_t>(t)[i]) * ue8m0_to_f32(args.x_scale.row<uint8_t>(t)[at]);
  }
}

}  // namespace

ImatrixCollector::ImatrixCollector(const Model& model) {
  DSV4_CHECK(model.device() == nullptr && model.id().whole(),
             "an imatrix is collected on the CPU, of a whole model");
  names_ = names_by_address(model.config(), model.weights());
}

void ImatrixCollector::observe(const OpCall& call) {
  if (call.impl().parts()) return call.run();  // its own calls come here one by one
  add_linear(call);
  add_experts(call);
  call.run();
}

ImatrixCollector::Sums* ImatrixCollector::sums_of(const WeightView& weight) {
  const auto name = names_.find(weight.data.data);
  if (name == names_.end()) return nullptr;
  constexpr std::string_view kSuffix = ".weight";  // of every matrix
  Sums& sums = sums_[name->second.substr(0, name->second.size() - kSuffix.size())];
  sums.squares.resize(static_cast<size_t>(weight.k));
  return &sums;
}

void ImatrixCollector::add_linear(const OpCall& call) {
  const LinearArgs* args = call.args_of(linear);
  if (args == nullptr || args->x.dim(0) == 0) return;
  Sums* const sums = sums_of(args->weight);
  if (sums == nullptr) return;
  std::vector<float> row(static_cast<size_t>(args->x.dim(1)));
  for (int64_t t = 0; t < args->x.dim(0); ++t) {
    load_row(*args, t, row);
    add_row(*sums, row);
  }
}

namespace {

// The expert that each pair of a token and a slot goes to.
std::vector<int32_t> experts_of_pairs(const ExpertsArgs& args) {
  const int64_t t = args.x.dim(0), k = slots(args);
  std::vector<int32_t> ids(static_cast<size_t>(t * k), 0);
  for (int64_t pair = 0; pair < t * k && !args.experts.empty(); ++pair)
    ids[static_cast<size_t>(pair)] = args.experts.row<int32_t>(pair / k)[pair % k];
  return ids;
}

// Pairs in the order of the experts, in which experts_hidden gives its rows (halves.h).
std::vector<int64_t> pairs_by_expert(const std::vector<int32_t>& ids) {
  std::vector<int64_t> pairs(ids.size());
  std::iota(pairs.begin(), pairs.end(), 0);
  std::ranges::stable_sort(pairs, {}, [&](int64_t pair) { return ids[static_cast<size_t>(pair)]; });
  return pairs;
}

}  // namespace

void ImatrixCollector::add_experts(const OpCall& call) {
  const ExpertsArgs* args = call.args_of(experts);
  if (args == nullptr || args->x.dim(0) == 0) return;
  const int64_t t = args->x.dim(0), k = slots(*args), inner = args->stack.inner();
  const Buffer hidden(DType::kF32, {t * k, inner});
  Context unobserved = call.context();
  unobserved.observer = nullptr;
  experts_hidden(unobserved, {.x = args->x,
                              .stack = args->stack,
                              .experts = args->experts,
                              .weights = args->weights,
                              .swiglu_limit = args->swiglu_limit,
                              .hidden = hidden});
  std::vector<float> x(static_cast<size_t>(args->x.dim(1))), h(static_cast<size_t>(inner));
  const std::vector<int32_t> ids = experts_of_pairs(*args);
  const std::vector<int64_t> pairs = pairs_by_expert(ids);
  for (int64_t row_of_h = 0; row_of_h < t * k; ++row_of_h) {
    const int64_t pair = pairs[static_cast<size_t>(row_of_h)];
    const ExpertWeights& expert =
        args->stack.file()[static_cast<size_t>(ids[static_cast<size_t>(pair)])];
    cpu::load(args->x, pair / k * args->x.row_stride(), std::ssize(x), x.data());
    cpu::load(hidden, row_of_h * inner, inner, h.data());
    for (const auto& [weight, row] :
         {std::pair(&expert.w1, &x), std::pair(&expert.w3, &x), std::pair(&expert.w2, &h)})
      if (Sums* const sums = sums_of(*weight)) add_row(*sums, *row);
  }
}

void ImatrixCollector::write(const std::string& path,
                             std::map<std::string, std::string> metadata) const {
  if (sums_.empty()) fail(ErrorCode::kBadInput, "{}: no token was read, nothing to write", path);
  std::vector<Buffer> means;
  std::vector<std::pair<std::string, ConstTensorView>> tensors;
  for (const auto& [name, sums] : sums_) {
    const Buffer& mean =
        means.emplace_back(DType::kF32, std::initializer_list<int64_t>{std::ssize(sums.squares)});
    for (size_t j = 0; j < sums.squares.size(); ++j)
      mean.as<float>()[j] = static_cast<float>(sums.squares[j] / static_cast<double>(sums.rows));
    tensors.emplace_back(name, mean);
    metadata[name] = std::to_string(sums.rows);
  }
  write_safetensors(path, tensors, metadata);
}

}  // namespace dsv4
