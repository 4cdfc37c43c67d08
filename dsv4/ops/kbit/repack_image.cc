#include "dsv4/ops/kbit/repack_image.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/kbit_image.h"
#include "dsv4/formats/pack_kbit_image.h"

namespace dsv4::repack_image_kernel {

DSV4_IMPL(RepackImageArgs, cpu)
DSV4_IMPL(RepackImageArgs, cuda)

constexpr Impl<RepackImageArgs> kRepackImage[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RepackImageArgs>, cpu::run},
};

}  // namespace dsv4::repack_image_kernel

namespace dsv4 {
namespace {

void check(const RepackImageArgs& args) {
  const WeightView& w = args.weight;
  check("weight", w);
  const int64_t bytes = image_shape(w).bytes();
  const ConstTensorView image = args.to_image ? ConstTensorView(args.image_out) : args.image;
  Dim any("bytes");
  expect("image", image, {DType::kU8}, {any});
  DSV4_CHECK(image.numel() == bytes && image.is_contiguous(),
             "an image of {} bytes: want {} without gaps", image.numel(), bytes);
  if (args.to_image) return;
  DSV4_CHECK(args.data.data == w.data.data && args.scale.data == w.scale.data,
             "data and scale are not those of the weight");
}

Cost cost(const RepackImageArgs& args) {
  return {.bytes = static_cast<double>(args.weight.bytes() + image_shape(args.weight).bytes())};
}

}  // namespace

constinit const Op<RepackImageArgs> repack_image{"repack_image", repack_image_kernel::kRepackImage,
                                                 check, cost};

}  // namespace dsv4
