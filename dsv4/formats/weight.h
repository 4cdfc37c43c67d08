// Encodings of stored weight matrices [n, k]: the format defines the meaning of `data` and `scale`.
//
//   format     data                       scale                        value of (row n, column k)
//   kF32       [n, k] F32                 -                            data
//   kBF16      [n, k] BF16                -                            data
//   kF16       [n, k] F16                 -                            data
//   kFp8Block  [n, k] E4M3                [n/128, k/128] E8M0 or F32   data * scale[n/128, k/128]
//                                         (rounded up)
//   kMxfp4     [n, k/2] bytes (2 e2m1)    [n, k/32] E8M0               e2m1 * scale[n, k/32]
//   kNvfp4     [n, k/2] bytes (2 e2m1)    [n, k/16] E4M3,              e2m1 * scale[n, k/16] * s2
//                                         s2 = scale2: one F32
//   kKbit      [n, k/32 * K] I32,         [n, k/32] U8 (E4M4)          codebook[code] * scale * s2
//              K planes per block (kbit.h)  s2 = scale2: one F32
//
// In the 4-bit formats the low nibble is the even k. Source: docs/spec/dsv4.md 10.3, 10.4, 10.6;
// docs/spec/lowbit.md 1.2.

#pragma once

#include <cstdint>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

enum class WeightFormat : uint8_t { kF32, kBF16, kF16, kFp8Block, kMxfp4, kNvfp4, kKbit };

inline constexpr int kFp8BlockSize = 128;
inline constexpr int kMxfp4Group = 32;
inline constexpr int kNvfp4Group = 16;

const char* name(WeightFormat format);

struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  int64_t n = 0, k = 0;        // logical shape: y[n] = sum_k w[n, k] x[k]
  ConstTensorView data;        // see the table above
  ConstTensorView scale;       // empty for kF32, kBF16, kF16
  float scale2 = 1.f;          // kNvfp4, kKbit
  int bits = 0;                // kKbit: K
  ConstTensorView codebook{};  // kKbit: [2^K] F32
  // kKbit: the codebook is e4m3_codebook(K). Set where values are read on the host: kernels that
  // know this codebook are chosen without reading `codebook`, which may be on a device.
  bool e4m3_codebook = false;

  bool empty() const { return data.empty(); }
  // Rows [begin, end); for kFp8Block `begin` must be a multiple of 128 unless `begin` and `end` are
  // in the same block row.
  WeightView rows(int64_t begin, int64_t end) const;
  int64_t bytes() const { return data.bytes() + (scale.empty() ? 0 : scale.bytes()); }
  // True where the official engine quantizes the activations before the GEMM
  // (docs/spec/dsv4.md 7.5). k-bit weights replace such weights, so they are included: an MXFP4
  // weight and its lossless k-bit image then give the same result.
  bool quantized_activations() const {
    return format == WeightFormat::kFp8Block || format == WeightFormat::kMxfp4 ||
           format == WeightFormat::kNvfp4 || format == WeightFormat::kKbit;
  }
};

// Throws with the wanted and the given shape when shapes or dtypes do not fit the format.
void check(const char* what, const WeightView& weight);

// One value, slow and simple: the definition of the formats. Oracles and tests use it.
double weight_value(const WeightView& weight, int64_t n, int64_t k);

}  // namespace dsv4
