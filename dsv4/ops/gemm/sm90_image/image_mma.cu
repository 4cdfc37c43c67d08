// A CTA computes what mma_kernel computes; only the loads of weights differ. A warp decodes 16 rows
// x 64 columns of the image in a step, 32 codes a lane, which are fragments: stmatrix stores them
// as rows.

#include "dsv4/ops/gemm/sm90_image/image_mma.h"

#include "dsv4/device/ptx/stmatrix.cuh"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/e4m4.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/gemm/cuda/mma.cuh"

namespace dsv4::gemm::sm90_image {

using namespace cuda;

namespace {

constexpr int kUnitSteps = KbitImage::kSteps;

// Where the rows of the image go in out, which has the columns of one projection after the other.
struct ImageRows {
  int n, projections;

  __device__ explicit ImageRows(const Problem& p) : n(p.n), projections(p.projections) {}
  __device__ int count() const { return n * projections; }
  __device__ int projection(int row) const { return projections == 1 ? 0 : row % 16 / 8; }
  __device__ int column(int row) const {
    return projections == 1 ? row : projection(row) * n + row / 16 * 8 + row % 8;
  }
};

// The codebook by nibble (kbit_nibbles), without signs for K >= 4. table: [2^K] floats
template <int K>
__device__ void fill_table(const Codebook& codebook, float* table) {
  constexpr int kTop = 1 << (K - 1);
  for (int i = threadIdx.x; i < (K >= 4 ? kTop : 2 * kTop); i += kMmaThreads) {
    const float magnitude = codebook.value.data()[kTop + i % kTop];
    table[i] = i >= kTop ? -magnitude : magnitude;
  }
}

template <ImageScale kScale>
__device__ float scale_of(uint8_t byte) {
  if constexpr (kScale == ImageScale::kUe8m0) return ue8m0_to_f32(byte);
  return kScale == ImageScale::kE4M3 ? e4m3_to_f32(byte) : e4m4_to_f32(byte);
}

// Loads and decodes a warp's share of each step: 16 rows of one slice.
template <int K, ImageScale kScale, int kTile>
class ImageLoader {
 public:
  __device__ ImageLoader(const std::byte* image, const KbitImage& shape, int first_row)
      : chunks_(static_cast<int>(shape.units_along_k())) {
    constexpr int kStrips = MmaShape<kTile>::kN / KbitImage::kUnitRows;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    strip_ = warp % kStrips, slice_ = warp / kStrips;
    // Strips past the end repeat the last one; their results are not stored.
    const int64_t strip =
        min(first_row / KbitImage::kUnitRows + strip_, static_cast<int>(shape.num_strips()) - 1);
    image_ = image + shape.unit_offset(strip, 0);
  }

  // Columns past the end become zeros.
  __device__ void load(int step) {
    const int at = step * MmaShape<kTile>::kSlices + slice_;
    const int chunk = at / kUnitSteps, j = at % kUnitSteps;
    scales_ = {};
#pragma unroll
    for (int i = 0; i < K; ++i) words_[i] = 0;
    if (chunk >= chunks_) return;
    const std::byte* unit = image_ + int64_t{chunk} * kUnitBytes<K, kScale>;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto word = [&](int i) { return unit + KbitImage::word_offset(lane, i); };
    if constexpr (K == 4) {
      const auto vector = load_as<uint4>(word(4 * j));
#pragma unroll
      for (int i = 0; i < 4; ++i) words_[i] = word_of(vector, i);
    } else if constexpr (K == 2) {
      const auto vector = load_as<uint2>(word(2 * j));
      words_[0] = vector.x, words_[1] = vector.y;
    } else {
#pragma unroll
      for (int i = 0; i < K; ++i) words_[i] = load_as<uint32_t>(word(K * j + i));
    }
    const std::byte* scales = unit + 512 * K + lane / 4 * kRowScales;
    scales_ = load_as<Scales>(scales + kRowScales / kUnitSteps * j);
  }

  __device__ void store(std::byte* operand, const float* table) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* bytes = reinterpret_cast<const std::byte*>(table);
    // stmatrix: registers 0 .. 3 are rows g and g + 8 of columns 0 - 7, then of columns 8 - 15.
    const int row = strip_ * KbitImage::kUnitRows + lane % 16, chunk = lane / 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibbles = kbit_nibbles(words_, K, i);
      const auto value = [&](int q) {
        const uint32_t offset = (q == 0 ? nibbles << 2 : nibbles >> (4 * q - 2)) & 0x3cu;
        return *reinterpret_cast<const float*>(bytes + offset);
      };
      uint32_t pairs[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        uint32_t& pair = pairs[kbit_register(b)];
        const float scale = this->scale(16 * i / block_columns(kScale), b / 2);
        pair = ptx::pack_bf16x2(value(2 * b) * scale, value(2 * b + 1) * scale);
        if constexpr (K >= 4) pair ^= kbit_signs(words_, K, i, b);
      }
      ptx::stmatrix_x4(operand + chunk_at<MmaShape<kTile>::kN>(slice_, row, 2 * i + chunk), pairs);
    }
  }

 private:
  // Bytes that rows g and g + 8 of a unit have; a step has a quarter, two or four blocks.
  static constexpr int kRowScales = 2 * KbitImage::kUnitColumns / block_columns(kScale);
  using Scales = std::conditional_t<kRowScales == 32, uint2, uint32_t>;

  // The scale of a block of the step, row g + 8h.
  __device__ float scale(int block, int h) const {
    uint32_t two_blocks;
    if constexpr (kRowScales == 32) {
      two_blocks = block < 2 ? scales_.x : scales_.y;
    } else {
      two_blocks = scales_;
    }
    return scale_of<kScale>(static_cast<uint8_t>(two_blocks >> (16 * (block % 2) + 8 * h)));
  }

  const std::byte* image_;  // this warp's strip
  const int chunks_;
  int strip_, slice_;
  uint32_t words_[K];
  Scales scales_;
};

template <int kTile>
__device__ void store_image_sums(const ImageProblem& image, const Tile& tile, int first_row,
                                 const WarpPlace<kTile>& place, const Sums<kTile>& sums) {
  using Shape = MmaShape<kTile>;
  const Problem& p = image.problem;
  const ImageRows rows(p);
  const float* const scale2 = image.scale2 + tile.matrix * image.scale2_stride;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < Shape::kMmaN; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = first_row + place.n + n * 8 + lane % 4 * 2 + j;
      if (row >= rows.count()) continue;
      const float factor = scale2[rows.projection(row)];
      const int column = rows.column(row);
#pragma unroll
      for (int m = 0; m < Shape::kMmaM; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int pair = place.m + m * 16 + lane / 4 + h * 8;
          if (pair < tile.rows) store_out(p, tile, pair, column, sums[m][n][2 * h + j] * factor);
        }
      }
    }
  }
}

// grid: tiles, then groups of kN rows of the image
template <int K, ImageScale kScale, int kTile>
__global__ void __launch_bounds__(kMmaThreads, kTile == 32 ? 3 : 2)
    image_mma_kernel(const __grid_constant__ ImageProblem image) {
  ptx::pdl_start();
  using Shape = MmaShape<kTile>;
  extern __shared__ uint4 operands[];  // x, w, x, w
  __shared__ float table[1 << K];
  const Problem& p = image.problem;
  const Tile tile = this_tile(p);
  if (tile.rows == 0) return;
  fill_table<K>(image.codebook, table);
  const int first_row = static_cast<int>(blockIdx.y) * Shape::kN;
  const KbitImage shape{.n = ImageRows(p).count(), .k = p.k, .bits = K, .scale = kScale};
  ImageLoader<K, kScale, kTile> weights(image.images + tile.matrix * image.image_bytes, shape,
                                        first_row);
  const ActivationLoader<kTile> activations(p, tile);
  const WarpPlace<kTile> place;
  Sums<kTile> sums = {};
  sum_tile(p.k, weights, activations, table, operands, place, sums);
  if (place.slice == 0) store_image_sums<kTile>(image, tile, first_row, place, sums);
}

template <int K, ImageScale kScale, int kTile>
void launch_image(Device& device, const ImageProblem& image) {
  const Problem& p = image.problem;
  constexpr int kN = MmaShape<kTile>::kN;
  launch(device, "quant_gemm_image_mma", image_mma_kernel<K, kScale, kTile>,
         {.grid = tile_slots(p),
          .block = kMmaThreads,
          .grid_y = (p.n * p.projections + kN - 1) / kN,
          .shared = 4 * kOperandBytes},
         image);
}

template <int K, ImageScale kScale = ImageScale::kE4M4>
void launch_image_tile(Device& device, const ImageProblem& image) {
  switch (image.problem.tile_m) {
    case 32:
      return launch_image<K, kScale, 32>(device, image);
    case 64:
      return launch_image<K, kScale, 64>(device, image);
    default:
      return launch_image<K, kScale, 128>(device, image);
  }
}

}  // namespace

void run_image_mma(Device& device, const ImageProblem& image) {
  constexpr void (*kLaunches[KbitImage::kKinds])(Device&, const ImageProblem&) = {
      launch_image_tile<2>,
      launch_image_tile<3>,
      launch_image_tile<4>,
      launch_image_tile<5>,
      launch_image_tile<4, ImageScale::kUe8m0>,
      launch_image_tile<4, ImageScale::kE4M3>};
  kLaunches[KbitImage{.bits = image.codebook.bits, .scale = image.scale}.kind()](device, image);
}

}  // namespace dsv4::gemm::sm90_image
