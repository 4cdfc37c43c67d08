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
DSV4_IMPL(ExpertsHiddenArgs, sm90_many_e4m3)
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
    {"sm90_many_e4m3", Arch::kSm90, true, sm90_many_e4m3::reject, sm90_many_e4m3::run, 0x1p-13},
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
DSV4_IMPL(ExpertsOutputArgs, sm90_many_e4m3)
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
    {"sm90_many_e4m3", Arch::kSm90, true, sm90_many_e4m3::reject, sm90_many_e4m3::run, 0x1p-13},
    {"sm90_grouped_e4m3", Arch::kSm90, true, sm90_grouped_e4m3::reject, sm90_grouped_e4m3::run,
     0x1p-10},
    {"sm90_grouped", Arch::kSm90, true, sm90_grouped::reject, sm90_grouped::run, 0x1p-10},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
    {"parts", Arch::kCuda, true, parts::reject, parts::run, 0x1p-12},
#endif
    {"cpu", Arch::kCpu, true, cpu::reject, cpu::run, 0, cpu::host_bytes},
};
}  // namespace dsv4::experts_output_kernel

namespace dsv4::experts_sum_kernel {
DSV4_IMPL(ExpertsSumArgs, cuda)
DSV4_IMPL(ExpertsSumArgs, cpu)
namespace cpu {
HostBytes host_bytes(const ExpertsSumArgs& args);
}
constexpr Impl<ExpertsSumArgs> kTable[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<ExpertsSumArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, reject_mirrors<ExpertsSumArgs>, cpu::run, 0, cpu::host_bytes},
};
}  // namespace dsv4::experts_sum_kernel

namespace dsv4 {
namespace {

// k of the ids, or 1 without them.
int64_t slots_of(const ConstTensorView& experts) {
  return experts.empty() ? 1 : experts.dim(1);
}

void check_only(const ExpertStack& stack, const ConstTensorView& experts) {
  DSV4_CHECK(!experts.empty() || (stack.size() == 1 && !stack.is_part()),
             "no expert ids: want one expert, got {} of {}", stack.size(), stack.num_ids());
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
  Dim t("t"), n("n"), k("k"), inner("I"), pairs("t * k");
  check_only(args.stack, args.experts);
  if (args.rows.empty()) {
    DSV4_CHECK(!args.stack.is_part(), "a sum over {} of {} experts", args.stack.size(),
               args.stack.num_ids());
    expect("acc", args.acc, {DType::kF32}, {t, n});
    if (!args.addend.empty()) expect("addend", args.addend, {DType::kF32, DType::kBF16}, {t, n});
  } else {
    DSV4_CHECK(args.acc.empty() && args.addend.empty(), "rows of experts, and a sum of them");
    expect("rows", args.rows, {DType::kF32, DType::kBF16}, {pairs, n});
  }
  if (!args.experts.empty()) expect("experts", args.experts, {DType::kI32}, {t, k});
  const int64_t want = args.rows.empty() ? *t * slots_of(args.experts) : *pairs;
  DSV4_CHECK(args.rows.empty() || args.experts.empty() || want == *t * *k,
             "{} rows for {} tokens of {} experts", want, *t, *k);
  expect("hidden", args.hidden, {DType::kF32, DType::kBF16}, {want, inner});
  if (args.stack.is_image())
    check_image("down", args.stack.images().down, args.stack.images().down_bytes, *n, *inner);
  for (const ExpertWeights& expert : args.stack.file()) check_shape("w2", expert.w2, *n, *inner);
}

void check_sum(const ExpertsSumArgs& args) {
  Dim t("t"), n("n"), k("k");
  expect("acc", args.acc, {DType::kF32}, {t, n});
  expect("experts", args.experts, {DType::kI32}, {t, k});
  expect("rows", args.rows, {DType::kF32, DType::kBF16}, {*t * *k, n});
  if (!args.addend.empty()) expect("addend", args.addend, {DType::kF32, DType::kBF16}, {t, n});
  DSV4_CHECK(args.num_experts >= 1, "{} experts", args.num_experts);
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
  for (int64_t t = 0; !experts.empty() && t < experts.dim(0); ++t) {
    for (int64_t j = 0; j < experts.dim(1); ++j) {
      const int64_t id = experts.row<int32_t>(t)[j];
      if (stack.has_id(id)) chosen[static_cast<size_t>(id - stack.first_id())] = true;
    }
  }
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
      std::pow(1 - chosen / static_cast<double>(stack.num_ids()), static_cast<double>(t));
  return (1 - missed) * all;
}

// The part of all pairs that a stack is expected to have.
double share_of(const ExpertStack& stack) {
  return stack.is_part() ? static_cast<double>(stack.size()) / static_cast<double>(stack.num_ids())
                         : 1;
}

int64_t given_bytes(const ConstTensorView& view) {
  return view.empty() ? 0 : view.bytes();
}

Cost cost_with(const ExpertsHiddenArgs& args, double weights) {
  const double share = share_of(args.stack);
  return {.bytes = weights + static_cast<double>(args.x.bytes()) +
                   share * static_cast<double>(args.hidden.bytes()),
          .flops = 4.0 * share * static_cast<double>(args.hidden.numel() * args.x.dim(1)),
          .weight_bytes = weights};
}

Cost cost_with(const ExpertsOutputArgs& args, double weights) {
  const double share = share_of(args.stack);
  const double moved =
      share * static_cast<double>(args.hidden.bytes() + given_bytes(args.rows)) +
      static_cast<double>((args.add ? 2 : 1) * given_bytes(args.acc) + given_bytes(args.addend));
  return {.bytes = weights + moved,
          .flops = 2.0 * share * static_cast<double>(args.hidden.numel() * args.out().dim(1)),
          .weight_bytes = weights};
}

Cost cost_hidden(const ExpertsHiddenArgs& args) {
  return cost_with(args, chosen_bytes(args.stack, args.experts, First{}));
}

Cost cost_output(const ExpertsOutputArgs& args) {
  return cost_with(args, chosen_bytes(args.stack, args.experts, Second{}));
}

Cost cost_sum(const ExpertsSumArgs& args) {
  return {.bytes = static_cast<double>(args.rows.bytes() + (args.add ? 2 : 1) * args.acc.bytes() +
                                       given_bytes(args.addend)),
          .flops = static_cast<double>(args.rows.numel())};
}

}  // namespace

Cost expected_cost(const ExpertsHiddenArgs& args) {
  return cost_with(args, expected_bytes(args.stack, args.experts, args.x.dim(0), First{}));
}

Cost expected_cost(const ExpertsOutputArgs& args) {
  return cost_with(args, expected_bytes(args.stack, args.experts, args.tokens(), Second{}));
}

constinit const Op<ExpertsHiddenArgs> experts_hidden{
    "experts_hidden", experts_hidden_kernel::kTable, check_hidden, cost_hidden};
constinit const Op<ExpertsOutputArgs> experts_output{
    "experts_output", experts_output_kernel::kTable, check_output, cost_output};
constinit const Op<ExpertsSumArgs> experts_sum{"experts_sum", experts_sum_kernel::kTable, check_sum,
                                               cost_sum};

}  // namespace dsv4
