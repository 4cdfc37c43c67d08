// Codebooks of k-bit weights: the 2^K values that codes represent, before the block's scale.
//
//   nf    quantiles of a Gaussian at the midpoints of 2^K equal bins, ends at -1 and 1, no zero:
//         c_i = fl32(fl32(Q((i + .5)/n)) / fl32(Q((n - .5)/n))), Q the normal quantile
//   bnf   Lloyd-Max levels of a Gaussian divided by its block-of-32 absmax, ends free
//   e2m1  the FP4 values over 8, K = 4 only: MXFP4 fits without loss (docs/spec/lowbit.md 7.1)
//   e4m3  near bnf, of e4m3 numbers times a power of two: FP8 tensor cores multiply such weights
//         without rounding them (docs/kernels/experts.md). At K = 5 value i of the positive half is
//         8 times the e4m3 code 2i + 1, so kernels need no table
//
// These four are sorted and antisymmetric bit for bit: codes i and 2^K - 1 - i are negatives of
// each other (e2m1 has a -0 and a 0). A user's codebook may be any 2^K finite ascending numbers.
// Source: docs/spec/lowbit.md 1.2.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsv4 {

inline constexpr int kMinKbit = 2, kMaxKbit = 5;
inline constexpr bool is_kbit(int64_t bits) {
  return bits >= kMinKbit && bits <= kMaxKbit;
}

struct Codebook {
  int bits = 0;
  std::array<float, 1 << kMaxKbit> value{};  // [2^bits] ascending

  int size() const { return 1 << bits; }
  std::span<const float> values() const { return {value.data(), static_cast<size_t>(size())}; }
  float largest() const;  // the largest magnitude
  // Codes i and 2^K - 1 - i are negatives of each other, sign of zero included.
  bool antisymmetric() const;
};

// Throw kInvalidArgument when `bits` is not 2..5.
Codebook nf_codebook(int bits);
Codebook bnf_codebook(int bits);
Codebook e2m1_codebook();
Codebook e4m3_codebook(int bits);
bool is_e4m3_codebook(std::span<const float> values);

// 2^K finite values in ascending order, not all zero. Throws kBadInput with the first value that is
// wrong.
Codebook user_codebook(std::span<const float> values);

}  // namespace dsv4
