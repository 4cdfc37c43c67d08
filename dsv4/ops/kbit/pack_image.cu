// A warp makes a unit of 16 rows x 256 columns, each lane the words that it reads again later. The
// four lanes of a row read the same planes.

#include "dsv4/ops/kbit/pack_image.h"

#include "dsv4/device/error.h"
#include "dsv4/device/math.cuh"

namespace dsv4 {
namespace {

constexpr int kWarps = 8;

struct Source {
  FlatKbit weights[2];
  int count;
};

// A row of the image: where its planes and scales are; null past the end.
struct FlatRow {
  const uint32_t* planes = nullptr;
  const uint8_t* scale = nullptr;

  __device__ FlatRow(const KbitImage& image, const Source& source, int64_t row) {
    if (row >= image.n) return;
    // With two weights, groups of 8 rows alternate.
    const int which = source.count == 1 ? 0 : static_cast<int>(row % 16 / 8);
    const int64_t at = source.count == 1 ? row : row / 16 * 8 + row % 8;
    const int64_t blocks = image.k / kKbitBlock;
    planes = source.weights[which].planes + at * blocks * image.bits;
    scale = source.weights[which].scale + at * blocks;
  }
};

// The words of step `j` of a lane. rows: g and g + 8
template <int K>
__device__ void pack_step(const KbitImage& image, const FlatRow (&rows)[2], int64_t first_block,
                          int t, uint32_t (&words)[K]) {
  uint8_t codes[KbitImage::kLaneCodes] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int64_t block = first_block + b;
      if (rows[h].planes == nullptr || block >= image.k / kKbitBlock) continue;
      uint32_t planes[K];
#pragma unroll
      for (int p = 0; p < K; ++p) planes[p] = rows[h].planes[block * K + p];
#pragma unroll
      for (int e = b * 16; e < b * 16 + 16; ++e) {
        if (e % 8 / 2 % 2 != h) continue;
        const int column = e / 8 % 2 * 16 + e % 8 / 4 * 8 + e % 2 + 2 * t;
        const uint8_t code = kbit_code(planes, K, column);
        codes[e] = image.sign_magnitude ? kbit_to_sign_magnitude(code, K) : code;
      }
    }
  }
  pack_kbit_lane(codes, K, words);
}

template <int K>
__global__ void pack_kernel(KbitImage image, Source source, std::byte* bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int64_t units = image.num_strips() * image.units_along_k();
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (unit >= units) return;
  const int64_t strip = unit / image.units_along_k(), chunk = unit % image.units_along_k();
  const FlatRow rows[2] = {{image, source, strip * KbitImage::kUnitRows + g},
                           {image, source, strip * KbitImage::kUnitRows + g + 8}};
  std::byte* const to = bytes + image.unit_offset(strip, chunk);
  const int64_t first_block = chunk * (KbitImage::kUnitColumns / kKbitBlock);
#pragma unroll 1
  for (int j = 0; j < KbitImage::kSteps; ++j) {
    uint32_t words[K];
    pack_step<K>(image, rows, first_block + 2 * j, t, words);
#pragma unroll
    for (int i = 0; i < K; ++i)
      *reinterpret_cast<uint32_t*>(to + KbitImage::word_offset(lane, j * K + i)) = words[i];
  }
  uint32_t scales = 0;  // of blocks 2t and 2t + 1, rows g and g + 8 of each
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t block = first_block + 2 * t + i / 2;
    if (rows[i % 2].scale != nullptr && block < image.k / kKbitBlock)
      scales |= uint32_t{rows[i % 2].scale[block]} << (8 * i);
  }
  *reinterpret_cast<uint32_t*>(to + image.scale_offset(g, 2 * t)) = scales;
}

}  // namespace

void pack_kbit_image(cudaStream_t stream, const KbitImage& image, std::span<const FlatKbit> weights,
                     std::byte* bytes) {
  const Source source{{weights.front(), weights.back()}, static_cast<int>(weights.size())};
  const auto kernel = image.bits == 2   ? pack_kernel<2>
                      : image.bits == 3 ? pack_kernel<3>
                      : image.bits == 4 ? pack_kernel<4>
                                        : pack_kernel<5>;
  const int64_t units = image.num_strips() * image.units_along_k();
  if (units == 0) return;
  kernel<<<static_cast<unsigned>(ceil_div(units, kWarps)), kWarps * kWarp, 0, stream>>>(
      image, source, bytes);
  cuda_check(cudaGetLastError(), "pack_kbit_image");
}

}  // namespace dsv4
