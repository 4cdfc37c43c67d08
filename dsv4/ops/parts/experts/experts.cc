#include "dsv4/ops/parts/experts/experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"

namespace dsv4::experts_kernel {

// The shared expert in FP8 blocks, 64 tokens or more: products by cuBLASLt.
DSV4_IMPL(ExpertsArgs, cublaslt_fp8)
// Kernel images of k-bit weights under kOfficial: products for up to 8 tokens of an expert at a
// time, weights rounded to f16.
DSV4_IMPL(ExpertsArgs, sm90_few)
// Kernel images of FP4, or with codebooks of at most 4 bits on the e4m3 grid: weights are exact.
DSV4_IMPL(ExpertsArgs, sm90_few_e4m3)
// The kernels of sm90_few_e4m3 for rows of up to 7,168 columns; they lie in its folder.
DSV4_IMPL(ExpertsArgs, sm90_wide)
// What sm90_few_e4m3 and sm90_wide compute, to the bit, for up to 48 tokens of an expert at a time.
DSV4_IMPL(ExpertsArgs, sm90_many_e4m3)
// Kernel images under kOfficial: products for up to 128 tokens of an expert at a time. FP4 weights
// are exact, k-bit ones are rounded to f16 with their scales.
DSV4_IMPL(ExpertsArgs, sm90_grouped)
// MXFP4 weights as e4m3 operands, where no exponent is more than kFoldedSpan below the largest;
// otherwise sm90_grouped.
DSV4_IMPL(ExpertsArgs, sm90_grouped_e4m3)
// Tensor cores under kOfficial, when experts have more than a few tokens. Weights whose values are
// no bf16 numbers are rounded to bf16.
DSV4_IMPL(ExpertsArgs, cuda_mma)
// Up to 4 rows of bf16 of an expert at a time, where ExpertsArgs::may_round_operands: a kernel
// image of each matrix, FP4 or of at most 4 bits with e4m3 codebooks. Only h is rounded, to bf16.
DSV4_IMPL(ExpertsArgs, sm90_image)
// f32 arithmetic, any activation. Experts at equal distances in memory, with one format for gate
// and up and one for down, take a launch for each product; others one or more for each format.
DSV4_IMPL(ExpertsArgs, cuda)
// Tensor cores for up to 8 tokens of an expert at a time, where ExpertsArgs::may_round_operands:
// k-bit weights in rows that share a codebook, x in bf16 or f16.
DSV4_IMPL(ExpertsArgs, cuda_kbit)
DSV4_IMPL(ExpertsArgs, cpu)

namespace cuda_mma {
double rounding(const ExpertsArgs& args);
}
namespace cuda_kbit {
double rounding(const ExpertsArgs& args);
}
namespace sm90_image {
constexpr double kRounding = 0x1p-9;  // of h
}
namespace cpu {
HostBytes host_bytes(const ExpertsArgs& args);
}

constexpr Impl<ExpertsArgs> kExperts[] = {
#if DSV4_CUDA
    {"cublaslt_fp8", Arch::kSm90, false, cublaslt_fp8::reject, cublaslt_fp8::run},
    {"sm90_few_e4m3", Arch::kSm90, true, sm90_few_e4m3::reject, sm90_few_e4m3::run, 0x1p-13},
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run, 0x1p-11},
    {"sm90_wide", Arch::kSm90, true, sm90_wide::reject, sm90_wide::run, 0x1p-13},
    {"sm90_many_e4m3", Arch::kSm90, true, sm90_many_e4m3::reject, sm90_many_e4m3::run, 0x1p-13},
    {"sm90_grouped_e4m3", Arch::kSm90, true, sm90_grouped_e4m3::reject, sm90_grouped_e4m3::run,
     0x1p-10},
    {"sm90_grouped", Arch::kSm90, true, sm90_grouped::reject, sm90_grouped::run, 0x1p-10},
    {"sm90_image", Arch::kSm90, true, sm90_image::reject, sm90_image::run, sm90_image::kRounding},
    {"cuda_mma", Arch::kCuda, false, cuda_mma::reject, cuda_mma::run, cuda_mma::rounding},
    {"cuda_kbit", Arch::kCuda, true, cuda_kbit::reject, cuda_kbit::run, cuda_kbit::rounding},
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, cpu::reject, cpu::run, 0, cpu::host_bytes},
};

}  // namespace dsv4::experts_kernel

namespace dsv4 {
namespace {

void check_shape(const char* what, const WeightView& w, int64_t n, int64_t k) {
  check(what, w);
  DSV4_CHECK(w.n == n && w.k == k, "{}: want [{}, {}], got [{}, {}]", what, n, k, w.n, w.k);
}

bool like(const TensorMeta& a, const TensorMeta& b) {
  return a.dtype == b.dtype && a.rank == b.rank && a.shape == b.shape && a.stride == b.stride;
}

// Whether a weight fits its format and shape because another one does.
bool like(const WeightView& a, const WeightView& b) {
  return a.format == b.format && a.bits == b.bits && a.n == b.n && a.k == b.k &&
         like(a.data, b.data) && like(a.scale, b.scale) && like(a.codebook, b.codebook);
}

void check_file(std::span<const ExpertWeights> file, int64_t d) {
  for (const ExpertWeights& expert : file) {
    const ExpertWeights& first = file.front();
    if (&expert != &first && like(expert.w1, first.w1) && like(expert.w3, first.w3) &&
        like(expert.w2, first.w2))
      continue;  // hundreds in every call
    check_shape("w1", expert.w1, first.w1.n, d);
    check_shape("w3", expert.w3, first.w1.n, d);
    check_shape("w2", expert.w2, d, first.w1.n);
  }
}

void check_matrix_image(const char* what, const WeightView& w, int64_t n, int64_t k) {
  DSV4_CHECK(w.n == n && w.k == k, "{}: want [{}, {}], got [{}, {}]", what, n, k, w.n, w.k);
  expect(what, w.data, {DType::kU8}, {image_of_format(w).bytes()});
}

void check_matrix_images(std::span<const ExpertWeights> file, int64_t d) {
  for (const ExpertWeights& expert : file) {
    check_matrix_image("image of w1", expert.w1, file.front().w1.n, d);
    check_matrix_image("image of w3", expert.w3, file.front().w1.n, d);
    check_matrix_image("image of w2", expert.w2, d, file.front().w1.n);
  }
}

void check_images(const ExpertImages& images, int64_t d) {
  const KbitImage &up = images.gate_up, &down = images.down;
  DSV4_CHECK(up.k == d && down.n == d && up.n == 2 * down.k,
             "images [{}, {}] and [{}, {}] for x of {}", up.n, up.k, down.n, down.k, d);
  Dim e("e");
  expect("gate_up_bytes", images.gate_up_bytes, {DType::kU8}, {e, up.bytes()});
  expect("down_bytes", images.down_bytes, {DType::kU8}, {e, down.bytes()});
  expect("scale2", images.scale2, {DType::kF32}, {e, 3});
  if (!images.exponents.empty()) expect("exponents", images.exponents, {DType::kI32}, {e, 3});
  if (images.has_places()) expect("places", images.places, {DType::kI64}, {e});
}

void check(const ExpertsArgs& args) {
  Dim t("t"), d("d"), k("k");
  expect("x", args.x, {DType::kF32, DType::kBF16, DType::kF16}, {t, d});
  DSV4_CHECK(!args.stack.is_part(), "a sum over {} of {} experts", args.stack.size(),
             args.stack.num_ids());
  if (args.experts.empty()) {
    DSV4_CHECK(args.weights.empty() && args.stack.size() == 1,
               "no expert ids: want no weights and one expert, got {} weights and {} experts",
               args.weights.empty() ? "no" : "some", args.stack.size());
  } else {
    expect("experts", args.experts, {DType::kI32}, {t, k});
    expect("weights", args.weights, {DType::kF32}, {t, k});
  }
  expect("acc", args.acc, {DType::kF32}, {t, d});
  if (!args.addend.empty()) expect("addend", args.addend, {DType::kF32, DType::kBF16}, {t, d});
  DSV4_CHECK(args.swiglu_limit >= 0, "swiglu_limit is {}", args.swiglu_limit);
  if (args.stack.is_image()) {
    check_images(args.stack.images(), *d);
  } else if (args.stack.layout() == WeightLayout::kMatrixImages) {
    check_matrix_images(args.stack.file(), *d);
  } else {
    check_file(args.stack.file(), *d);
  }
}

double bytes_of(const ExpertStack& stack, int64_t e) {
  return static_cast<double>(stack.expert_bytes(e));
}

// The experts have equal shapes, so every token costs the same flops.
Cost cost_with(const ExpertsArgs& args, double weight_bytes) {
  const auto pairs = static_cast<double>(args.x.dim(0) * slots(args));
  const int64_t ids = args.experts.empty() ? 0 : args.experts.bytes() + args.weights.bytes();
  const int64_t moved = args.x.bytes() + ids + (args.add ? 2 : 1) * args.acc.bytes() +
                        (args.addend.empty() ? 0 : args.addend.bytes());
  const double inner = args.stack.empty() ? 0 : static_cast<double>(args.stack.inner());
  return {.bytes = weight_bytes + static_cast<double>(moved),
          .flops = 6.0 * pairs * inner * static_cast<double>(args.x.dim(1)),
          .weight_bytes = weight_bytes};
}

// The weights of an expert are read once, however many tokens chose it.
Cost cost(const ExpertsArgs& args) {
  double weight_bytes = 0;
  std::vector<bool> active(static_cast<size_t>(args.stack.size()));
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    for (int64_t j = 0; j < slots(args); ++j) {
      const auto e =
          args.experts.empty() ? size_t{0} : static_cast<size_t>(args.experts.row<int32_t>(i)[j]);
      if (!active[e]) weight_bytes += bytes_of(args.stack, static_cast<int64_t>(e));
      active[e] = true;
    }
  }
  return cost_with(args, weight_bytes);
}

}  // namespace

Cost expected_cost(const ExpertsArgs& args) {
  if (args.experts.empty()) return cost(args);
  return cost_with(args, expected_weight_bytes(args.stack, args.x.dim(0), slots(args)));
}

double expected_weight_bytes(const ExpertStack& stack, int64_t t, int64_t k) {
  double all = 0;
  for (int64_t e = 0; e < stack.size(); ++e) all += bytes_of(stack, e);
  const double missed = std::pow(1 - static_cast<double>(k) / static_cast<double>(stack.size()),
                                 static_cast<double>(t));
  return (1 - missed) * all;
}

#if DSV4_CUDA
WeightLayout best_layout(const Context& context, std::span<const ExpertWeights> file) {
  if (!reads_images(context)) return WeightLayout::kFile;
  const ExpertImages images = expert_images(file);
  const bool fast = !images.empty() && (sm90_few_takes(images) || sm90_wide_takes(images));
  return fast ? WeightLayout::kImage : WeightLayout::kFile;
}
#else
WeightLayout best_layout(const Context&, std::span<const ExpertWeights>) {
  return WeightLayout::kFile;
}
#endif

constinit const Op<ExpertsArgs> experts{"experts", experts_kernel::kExperts, check, cost};

}  // namespace dsv4
