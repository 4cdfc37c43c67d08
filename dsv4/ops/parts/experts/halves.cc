#include "dsv4/ops/parts/experts/halves.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/error.h"

namespace dsv4::experts_hidden_kernel {
DSV4_IMPL(ExpertsHiddenArgs, cpu)
namespace cpu {
HostBytes host_bytes(const ExpertsHiddenArgs& args);
}
constexpr Impl<ExpertsHiddenArgs> kTable[] = {
    {"cpu", Arch::kCpu, true, cpu::reject, cpu::run, 0, cpu::host_bytes},
};
}  // namespace dsv4::experts_hidden_kernel

namespace dsv4::experts_output_kernel {
DSV4_IMPL(ExpertsOutputArgs, cpu)
namespace cpu {
HostBytes host_bytes(const ExpertsOutputArgs& args);
}
constexpr Impl<ExpertsOutputArgs> kTable[] = {
    {"cpu", Arch::kCpu, true, cpu::reject, cpu::run, 0, cpu::host_bytes},
};
}  // namespace dsv4::experts_output_kernel

namespace dsv4 {
namespace {

// k of the ids, or 1 without them.
int64_t slots_of(const ConstTensorView& experts) {
  return experts.empty() ? 1 : experts.dim(1);
}

void check_only(const ExpertStack& stack, const ConstTensorView& experts) {
  DSV4_CHECK(!experts.empty() || stack.size() == 1, "no expert ids: want one expert, got {}",
             stack.size());
}

void check_shape(const char* what, const WeightView& w, int64_t n, int64_t k) {
  check(what, w);
  DSV4_CHECK(w.n == n && w.k == k, "{}: want [{}, {}], got [{}, {}]", what, n, k, w.n, w.k);
}

void check_hidden(const ExpertsHiddenArgs& args) {
  Dim t("t"), d("d"), k("k");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  check_only(args.stack, args.experts);
  DSV4_CHECK(args.experts.empty() == args.weights.empty(), "expert ids without weights, or these");
  if (!args.experts.empty()) {
    expect("experts", args.experts, {DType::kI32}, {t, k});
    expect("weights", args.weights, {DType::kF32}, {t, k});
  }
  const int64_t inner = args.stack.empty() ? args.hidden.dim(1) : args.stack.inner();
  expect("hidden", args.hidden, {DType::kF32, DType::kBF16}, {*t * slots_of(args.experts), inner});
  DSV4_CHECK(args.swiglu_limit >= 0, "swiglu_limit is {}", args.swiglu_limit);
  for (const ExpertWeights& expert : args.stack.file()) {
    check_shape("w1", expert.w1, inner, *d);
    check_shape("w3", expert.w3, inner, *d);
  }
}

void check_output(const ExpertsOutputArgs& args) {
  Dim t("t"), n("n"), k("k"), inner("I");
  expect("acc", args.acc, {DType::kF32}, {t, n});
  check_only(args.stack, args.experts);
  if (!args.experts.empty()) expect("experts", args.experts, {DType::kI32}, {t, k});
  expect("hidden", args.hidden, {DType::kF32, DType::kBF16}, {*t * slots_of(args.experts), inner});
  for (const ExpertWeights& expert : args.stack.file()) check_shape("w2", expert.w2, *n, *inner);
}

// Bytes of the weights that `of` picks, of the experts that the tokens chose; all without ids.
template <class Of>
double chosen_bytes(const ExpertStack& stack, const ConstTensorView& experts, const Of& of) {
  std::vector<bool> chosen(static_cast<size_t>(stack.size()), experts.empty());
  for (int64_t t = 0; !experts.empty() && t < experts.dim(0); ++t)
    for (int64_t j = 0; j < experts.dim(1); ++j)
      chosen[static_cast<size_t>(experts.row<int32_t>(t)[j])] = true;
  double bytes = 0;
  for (size_t e = 0; e < chosen.size(); ++e)
    if (chosen[e]) bytes += static_cast<double>(of(stack.file()[e]));
  return bytes;
}

// What is expected of t tokens that choose k experts each at random.
template <class Of>
double expected_bytes(const ExpertStack& stack, const ConstTensorView& experts, int64_t t,
                      const Of& of) {
  double all = 0;
  for (const ExpertWeights& expert : stack.file()) all += static_cast<double>(of(expert));
  const auto chosen = static_cast<double>(slots_of(experts));
  const double missed =
      std::pow(1 - chosen / static_cast<double>(stack.size()), static_cast<double>(t));
  return (1 - missed) * all;
}

int64_t first_bytes(const ExpertWeights& expert) {
  return expert.w1.bytes() + expert.w3.bytes();
}
int64_t second_bytes(const ExpertWeights& expert) {
  return expert.w2.bytes();
}

Cost cost_with(const ExpertsHiddenArgs& args, double weights) {
  return {.bytes = weights + static_cast<double>(args.x.bytes() + args.hidden.bytes()),
          .flops = 4.0 * static_cast<double>(args.hidden.numel() * args.x.dim(1)),
          .weight_bytes = weights};
}

Cost cost_with(const ExpertsOutputArgs& args, double weights) {
  const int64_t moved = args.hidden.bytes() + (args.add ? 2 : 1) * args.acc.bytes();
  return {.bytes = weights + static_cast<double>(moved),
          .flops = 2.0 * static_cast<double>(args.hidden.numel() * args.acc.dim(1)),
          .weight_bytes = weights};
}

Cost cost_hidden(const ExpertsHiddenArgs& args) {
  return cost_with(args, chosen_bytes(args.stack, args.experts, first_bytes));
}

Cost cost_output(const ExpertsOutputArgs& args) {
  return cost_with(args, chosen_bytes(args.stack, args.experts, second_bytes));
}

}  // namespace

Cost expected_cost(const ExpertsHiddenArgs& args) {
  return cost_with(args, expected_bytes(args.stack, args.experts, args.x.dim(0), first_bytes));
}

Cost expected_cost(const ExpertsOutputArgs& args) {
  return cost_with(args, expected_bytes(args.stack, args.experts, args.acc.dim(0), second_bytes));
}

constinit const Op<ExpertsHiddenArgs> experts_hidden{
    "experts_hidden", experts_hidden_kernel::kTable, check_hidden, cost_hidden};
constinit const Op<ExpertsOutputArgs> experts_output{
    "experts_output", experts_output_kernel::kTable, check_output, cost_output};

}  // namespace dsv4
