#include "dsv4/ops/parts/dequantize/dequantize_impls.h"

#include <algorithm>
#include <array>

#include "dsv4/base/bits.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/parts/dequantize/dequantize_kernel.h"

namespace dsv4 {
namespace {

using dequantize_kernel::decode_pairs;
using dequantize_kernel::decode_planes;
using dequantize_kernel::PairScale;

// Columns decoded at a time: whole scale groups of every format, and f32 values that stay in L1.
constexpr int64_t kSegment = 2048;
static_assert(kSegment % kFp8BlockSize == 0);

void decode_fp8(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  const uint8_t* codes = w.data.row<uint8_t>(row) + begin;
  const int64_t scale_row = row / kFp8BlockSize, first = begin / kFp8BlockSize;
  for (int64_t i = 0; i < count; i += kFp8BlockSize) {
    const int64_t block = first + i / kFp8BlockSize;
    const float scale = w.scale.dtype == DType::kF32
                            ? w.scale.row<float>(scale_row)[block]
                            : ue8m0_to_f32(w.scale.row<uint8_t>(scale_row)[block]);
    cpu::decode_e4m3(codes + i, scale, out + i, std::min<int64_t>(kFp8BlockSize, count - i));
  }
}

// Columns [begin, begin + count) of a row as f32; `begin` is a multiple of kSegment.
void decode(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return cpu::load(w.data, row * w.data.row_stride() + begin, count, out);
    case WeightFormat::kFp8Block:
      return decode_fp8(w, row, begin, count, out);
    case WeightFormat::kMxfp4:
      return decode_pairs(w.data.row<uint8_t>(row) + begin / 2, PairScale::kE8M0,
                          w.scale.row<uint8_t>(row) + begin / kMxfp4Group, kMxfp4Group, count, 1.f,
                          out);
    case WeightFormat::kNvfp4:
      return decode_pairs(w.data.row<uint8_t>(row) + begin / 2, PairScale::kE4M3,
                          w.scale.row<uint8_t>(row) + begin / kNvfp4Group, kNvfp4Group, count,
                          w.scale2, out);
    case WeightFormat::kKbit: {
      const int64_t block = begin / kKbitBlock;
      return decode_planes(w.data.row<uint32_t>(row) + block * w.bits, w.bits,
                           w.codebook.as<float>(), w.scale.row<uint8_t>(row) + block, count,
                           w.scale2, out);
    }
  }
}

}  // namespace

void dequantize_cpu(const Context&, const DequantizeArgs& args) {
  const int64_t rows = args.weight.n, k = args.weight.k, segments = ceil_div(k, kSegment);
  const bool in_place = args.out.dtype == DType::kF32;
#pragma omp parallel if (cpu::worth_sharing(2 * rows * k))
  {
    std::array<float, kSegment> values;
#pragma omp for
    for (int64_t unit = 0; unit < rows * segments; ++unit) {
      const int64_t row = unit / segments, begin = unit % segments * kSegment;
      const int64_t count = std::min(kSegment, k - begin);
      const int64_t offset = row * args.out.row_stride() + begin;
      float* out = in_place ? args.out.as<float>() + offset : values.data();
      decode(args.weight, row, begin, count, out);
      if (!in_place) cpu::store(args.out, offset, count, out);
    }
  }
}

}  // namespace dsv4
