#include "dsv4/ops/parts/image_linear/image_linear.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"

namespace dsv4::image_linear_kernel {

// Up to 4 rows of bf16 at a time (gemm/sm90/image_rows): FP4, and codebooks of at most 4 bits named
// e4m3. Neither weights nor x are rounded.
DSV4_IMPL(ImageLinearArgs, sm90_image)

#if DSV4_CUDA
// The tensor cores keep 13 fractional bits within the 32 columns of a block.
constexpr double kRounding = 0x1p-12;

constexpr Impl<ImageLinearArgs> kImageLinear[] = {
    {"sm90_image", Arch::kSm90, true, sm90_image::reject, sm90_image::run, kRounding},
};
#else
constexpr Table<ImageLinearArgs> kImageLinear;  // images are for GPUs
#endif

}  // namespace dsv4::image_linear_kernel

namespace dsv4 {
namespace {

void check(const ImageLinearArgs& args) {
  Dim t("t"), n("n", args.weight.n), k("k", args.weight.k);
  expect("image", args.weight.data, {DType::kU8}, {image_of_format(args.weight).bytes()});
  expect("x", args.x, {DType::kF32, DType::kBF16, DType::kF16}, {t, k});
  expect("out", args.out, {DType::kF32, DType::kBF16, DType::kF16}, {t, n});
}

Cost cost(const ImageLinearArgs& args) {
  const auto weight = static_cast<double>(args.weight.data.bytes());
  const auto products = static_cast<double>(args.weight.n * args.weight.k);
  return {.bytes = weight + static_cast<double>(args.x.bytes() + args.out.bytes()),
          .flops = 2.0 * static_cast<double>(args.x.dim(0)) * products,
          .weight_bytes = weight};
}

}  // namespace

constinit const Op<ImageLinearArgs> image_linear{"image_linear", image_linear_kernel::kImageLinear,
                                                 check, cost};

}  // namespace dsv4
