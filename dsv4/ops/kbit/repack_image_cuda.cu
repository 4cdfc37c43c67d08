// The implementation cuda of repack_image.h: one launch, in which a warp has a unit of the image.

#include "dsv4/device/launch.cuh"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/kbit/repack_image.h"
#include "dsv4/ops/kbit/unpack_image.cuh"

namespace dsv4::repack_image_kernel::cuda {
namespace {

using namespace kbit_packing;

// Calls run() with K and the scale as constants.
template <class Run>
void with_kind(const KbitImage& image, const Run& run) {
  const auto call = [&]<int K, ImageScale kScale>() { run.template operator()<K, kScale>(); };
  if (image.scale == ImageScale::kUe8m0) return call.template operator()<4, ImageScale::kUe8m0>();
  if (image.scale == ImageScale::kE4M3) return call.template operator()<4, ImageScale::kE4M3>();
  switch (image.bits) {
    case 2:
      return call.template operator()<2, ImageScale::kE4M4>();
    case 3:
      return call.template operator()<3, ImageScale::kE4M4>();
    case 4:
      return call.template operator()<4, ImageScale::kE4M4>();
    default:
      return call.template operator()<5, ImageScale::kE4M4>();
  }
}

}  // namespace

const char* reject(const Context&, const RepackImageArgs& args) {
  if (!args.weight.data.is_contiguous() || !args.weight.scale.is_contiguous())
    return "rows of the weight have gaps";
  for (const ConstTensorView& words :
       {args.weight.data, args.image, ConstTensorView(args.image_out)})
    if (reinterpret_cast<uintptr_t>(words.data) % sizeof(uint32_t) != 0)
      return "addresses that are no multiples of 4";
  return nullptr;
}

void run(const Context& context, const RepackImageArgs& args) {
  const WeightView& w = args.weight;
  const KbitImage image = image_shape(w);
  const float* codebook = w.codebook.empty() ? nullptr : w.codebook.as<float>();
  const LaunchShape shape{.grid = ceil_div(image.num_strips() * image.units_along_k(), kWarps),
                          .block = kWarps * kWarp,
                          .pdl = true};
  with_kind(image, [&]<int K, ImageScale kScale>() {
    if (args.to_image) {
      const FlatKbit flat{reinterpret_cast<const uint32_t*>(w.data.data),
                          reinterpret_cast<const uint8_t*>(w.scale.data)};
      launch(*context.device, "pack_image", pack_by_codebook_kernel<K, kScale>, shape, image,
             codebook, Source{flat, flat, 1}, args.image_out.data);
    } else {
      const ImageRows rows{reinterpret_cast<uint32_t*>(args.data.data),
                           reinterpret_cast<uint8_t*>(args.scale.data)};
      launch(*context.device, "unpack_image", unpack_kernel<K, kScale>, shape, image, codebook,
             args.image.data, rows);
    }
  });
}

}  // namespace dsv4::repack_image_kernel::cuda
