#include "dsv4/ops/parts/experts/halves.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/error.h"

namespace dsv4::experts_hidden_kernel {
// Kernel images under kOfficial: gate and up of the implementations of experts.h of these names,
// which take calls of as many pairs as these do.
DSV4_IMPL(ExpertsHiddenArgs, sm90_few_e4m3)
DSV4_IMPL(ExpertsHiddenArgs, sm90_few)
DSV4_IMPL(ExpertsHiddenArgs, sm90_wide)
DSV4_IMPL(ExpertsHiddenArgs, sm90_grouped_e4m3)
DSV4_IMPL(ExpertsHiddenArgs, sm90_grouped)
// Routed experts as stored in files, in f32 arithmetic.
DSV4_IMPL(ExpertsHiddenArgs, cuda)
DSV4_IMPL(ExpertsHiddenArgs, cpu)
// A shared expert: products of linear.h.
DSV4_IMPL(ExpertsHiddenArgs, parts)
namespace cpu {
HostBytes host_bytes(const ExpertsHiddenArgs& args);
}
constexpr Impl<ExpertsHiddenArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_few_e4m3", Arch::kSm90, true, sm90_few_e4m3::reject, sm90_few_e4m3::run, 0x1p-13},
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run, 0x1p-11},
    {"sm90_wide", Arch::kSm90, true, sm90_wide::reject, sm90_wide::run, 0x1p-13},
    {"sm90_grouped_e4m3", Arch::kSm90, true, sm90_grouped_e4m3::reject, sm90_grouped_e4m3::run,
     0x1p-10},
    {"sm90_grouped", Arch::kSm90, true, sm90_grouped::reject, sm90_grouped::run, 0x1p-10},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
    {"parts", Arch::kCuda, true, parts::reject, parts::run, 0x1p-12},
#endif
    {"cpu", Arch::kCpu, true, cpu::reject, cpu::run, 0, cpu::host_bytes},
};
}  // namespace dsv4::experts_hidden_kernel

namespace dsv4::experts_output_kernel {
// As above.
DSV4_IMPL(ExpertsOutputArgs, sm90_few_e4m3)
DSV4_IMPL(ExpertsOutputArgs, sm90_few)
DSV4_IMPL(ExpertsOutputArgs, sm90_grouped_e4m3)
DSV4_IMPL(ExpertsOutputArgs, sm90_grouped)
DSV4_IMPL(ExpertsOutputArgs, cuda)
DSV4_IMPL(ExpertsOutputArgs, cpu)
DSV4_IMPL(ExpertsOutputArgs, parts)
namespace cpu {
HostBytes host_bytes(const ExpertsOutputArgs& args);
}
constexpr Impl<ExpertsOutputArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_few_e4m3", Arch::kSm90, true, sm90_few_e4m3::reject, sm90_few_e4m3::run, 0x1p-13},
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run, 0x1p-11},
    {"sm90_grouped_e4m3", Arch::kSm90, true, sm90_grouped_e4m3::reject, sm90_grouped_e4m3::run,
     0x1p-10},
    {"sm90_grouped", Arch::kSm90, true, sm90_grouped::reject, sm90_grouped::run, 0x1p-10},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
    {"parts", Arch::kCuda, true, parts::reject, parts::run, 0x1p-12},
#endif
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

void check_image(const char* what, const KbitImage& image, const ConstTensorView& bytes, int64_t n,
                 int64_t k) {
  DSV4_CHECK(image.n == n && image.k == k, "{}: want an image of [{}, {}], got [{}, {}]", what, n,
             k, image.n, image.k);
  Dim e("e");
  expect(what, bytes, {DType::kU8}, {e, image.bytes()});
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
  if (args.stack.is_image())
    check_image("gate_up", args.stack.images().gate_up, args.stack.images().gate_up_bytes,
                2 * inner, *d);
  for (const ExpertWeights& expert : args.stack.file()) {
    check_shape("w1", expert.w1, inner, *d);
    check_shape("w3", expert.w3, inner, *d);
  }
}

void check_output(const ExpertsOutputArgs& args) {
  Dim t("t"), n("n"), k("k"), inner("I");
  expect("acc", args.acc, {DType::kF32}, {t, n});
  if (!args.addend.empty()) expect("addend", args.addend, {DType::kF32, DType::kBF16}, {t, n});
  check_only(args.stack, args.experts);
  if (!args.experts.empty()) expect("experts", args.experts, {DType::kI32}, {t, k});
  expect("hidden", args.hidden, {DType::kF32, DType::kBF16}, {*t * slots_of(args.experts), inner});
  if (args.stack.is_image())
    check_image("down", args.stack.images().down, args.stack.images().down_bytes, *n, *inner);
  for (const ExpertWeights& expert : args.stack.file()) check_shape("w2", expert.w2, *n, *inner);
}

// What a half reads of an expert.
struct First {
  int64_t operator()(const ExpertWeights& expert) const {
    return expert.w1.bytes() + expert.w3.bytes();
  }
  int64_t operator()(const ExpertImages& images) const { return images.gate_up.bytes(); }
};
struct Second {
  int64_t operator()(const ExpertWeights& expert) const { return expert.w2.bytes(); }
  int64_t operator()(const ExpertImages& images) const { return images.down.bytes(); }
};

template <class Of>
double bytes_of(const ExpertStack& stack, int64_t e, const Of& of) {
  return static_cast<double>(stack.is_image() ? of(stack.images())
                                              : of(stack.file()[static_cast<size_t>(e)]));
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
    if (chosen[e]) bytes += bytes_of(stack, static_cast<int64_t>(e), of);
  return bytes;
}

// What is expected of t tokens that choose k experts each at random.
template <class Of>
double expected_bytes(const ExpertStack& stack, const ConstTensorView& experts, int64_t t,
                      const Of& of) {
  double all = 0;
  for (int64_t e = 0; e < stack.size(); ++e) all += bytes_of(stack, e, of);
  const auto chosen = static_cast<double>(slots_of(experts));
  const double missed =
      std::pow(1 - chosen / static_cast<double>(stack.size()), static_cast<double>(t));
  return (1 - missed) * all;
}

Cost cost_with(const ExpertsHiddenArgs& args, double weights) {
  return {.bytes = weights + static_cast<double>(args.x.bytes() + args.hidden.bytes()),
          .flops = 4.0 * static_cast<double>(args.hidden.numel() * args.x.dim(1)),
          .weight_bytes = weights};
}

Cost cost_with(const ExpertsOutputArgs& args, double weights) {
  const int64_t moved = args.hidden.bytes() + (args.add ? 2 : 1) * args.acc.bytes() +
                        (args.addend.empty() ? 0 : args.addend.bytes());
  return {.bytes = weights + static_cast<double>(moved),
          .flops = 2.0 * static_cast<double>(args.hidden.numel() * args.acc.dim(1)),
          .weight_bytes = weights};
}

Cost cost_hidden(const ExpertsHiddenArgs& args) {
  return cost_with(args, chosen_bytes(args.stack, args.experts, First{}));
}

Cost cost_output(const ExpertsOutputArgs& args) {
  return cost_with(args, chosen_bytes(args.stack, args.experts, Second{}));
}

}  // namespace

Cost expected_cost(const ExpertsHiddenArgs& args) {
  return cost_with(args, expected_bytes(args.stack, args.experts, args.x.dim(0), First{}));
}

Cost expected_cost(const ExpertsOutputArgs& args) {
  return cost_with(args, expected_bytes(args.stack, args.experts, args.acc.dim(0), Second{}));
}

constinit const Op<ExpertsHiddenArgs> experts_hidden{
    "experts_hidden", experts_hidden_kernel::kTable, check_hidden, cost_hidden};
constinit const Op<ExpertsOutputArgs> experts_output{
    "experts_output", experts_output_kernel::kTable, check_output, cost_output};

}  // namespace dsv4
