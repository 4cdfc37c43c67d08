// The implementation cpu of repack_image.h: formats/pack_kbit_image.h, strip by strip. A strip
// is 16 rows of the weight and one run of bytes of the image, so threads share neither.

#include "dsv4/cpu/parallel.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/kbit/repack_image.h"

namespace dsv4::repack_image_kernel::cpu {

void run(const Context&, const RepackImageArgs& args) {
  const KbitImage image = kbit_image(args.weight);
  const int64_t strip = image.strip_bytes();
  const auto bytes = static_cast<size_t>(strip);
  const ImageTensors rows{args.data, args.scale};
#pragma omp parallel for if (dsv4::cpu::worth_sharing(image.n * image.k))
  for (int64_t s = 0; s < image.num_strips(); ++s) {
    if (args.to_image) {
      uint8_t* to = args.image_out.as<uint8_t>() + s * strip;
      pack_kbit_strip(image, {&args.weight, 1}, s, {to, bytes});
    } else {
      unpack_kbit_strip(image, {args.image.as<uint8_t>() + s * strip, bytes}, s, {&rows, 1});
    }
  }
}

}  // namespace dsv4::repack_image_kernel::cpu
