#include "dsv4/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/cpu/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if defined(HWY_COMPILE_ONLY_STATIC) && HWY_STATIC_TARGET == HWY_SCALAR
#error "these flags select Highway's one-lane target, which is ten times slower"
#endif

HWY_BEFORE_NAMESPACE();
namespace dsv4::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using F32Vec = hn::Vec<F32Tag>;
using In = Matrix<const float>;
using Out = Matrix<float>;

// The lane sums of four vectors at once, total[i] from v[i], with half the shuffles of four
// separate reductions.
HWY_INLINE void SumLanes(const F32Vec (&v)[4], float* total) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) total[i] = hn::GetLane(v[i]);
#else
  const F32Tag f32;
  const hn::Repartition<uint64_t, F32Tag> u64;
  const hn::CappedTag<float, 4> quad;
  // In every group of four lanes: v0 v1 v0 v1 | v2 v3 v2 v3, then v0 v1 v2 v3; then the groups are
  // added.
  const auto v01 =
      hn::Add(hn::InterleaveLower(f32, v[0], v[1]), hn::InterleaveUpper(f32, v[0], v[1]));
  const auto v23 =
      hn::Add(hn::InterleaveLower(f32, v[2], v[3]), hn::InterleaveUpper(f32, v[2], v[3]));
  const auto low = hn::InterleaveLower(u64, hn::BitCast(u64, v01), hn::BitCast(u64, v23));
  const auto high = hn::InterleaveUpper(u64, hn::BitCast(u64, v01), hn::BitCast(u64, v23));
  HWY_ALIGN float blocks[hn::MaxLanes(F32Tag())];
  hn::Store(hn::Add(hn::BitCast(f32, low), hn::BitCast(f32, high)), f32, blocks);
  auto sum = hn::Load(quad, blocks);
  for (size_t i = 4; i < hn::Lanes(f32); i += 4) sum = hn::Add(sum, hn::Load(quad, blocks + i));
  hn::StoreU(sum, quad, total);
#endif
}

// Adds the terms from column c on to m x n dot products. A separate function, so that its registers
// do not add to those of the tile.
HWY_NOINLINE void AddTails(const In& a, int64_t row, int m, const In& b, int64_t column, int n,
                           int64_t c, const Out& out) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float& total = out.row(row + i)[column + j];
      for (int64_t r = c; r < a.columns; ++r) total += a.row(row + i)[r] * b.row(column + j)[r];
    }
  }
}

// kM x kN dot products with one vector accumulator each: the terms of each lane are added first,
// then the lanes, then the tail. kN <= 4
template <int kM, int kN>
HWY_INLINE void DotTile(const In& a, int64_t row, const In& b, int64_t column, const Out& out) {
  const F32Tag f32;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  const float* x = a.row(row);
  const float* y = b.row(column);
  F32Vec sum[kM][4];
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < 4; ++j) sum[i][j] = hn::Zero(f32);
  }
  int64_t c = 0;
  for (; c + step <= a.columns; c += step) {
    F32Vec right[kN];
    for (int j = 0; j < kN; ++j) right[j] = hn::LoadU(f32, y + j * b.stride + c);
    for (int i = 0; i < kM; ++i) {
      const F32Vec left = hn::LoadU(f32, x + i * a.stride + c);
      for (int j = 0; j < kN; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kM; ++i) {
    float total[4];
    SumLanes(sum[i], total);
    for (int j = 0; j < kN; ++j) out.row(row + i)[column + j] = total[j];
  }
  if (c < a.columns) AddTails(a, row, kM, b, column, kN, c, out);
}

// kN rows of b times all of a; the rows of b stay in the L1 cache.
template <int kN>
HWY_INLINE void DotColumns(const In& a, const In& b, int64_t column, const Out& out) {
  int64_t row = 0;
  for (; row + 4 <= a.rows; row += 4) DotTile<4, kN>(a, row, b, column, out);
  for (; row < a.rows; ++row) DotTile<1, kN>(a, row, b, column, out);
}

void MatmulAbt(const In& a, const In& b, const Out& out) {
  int64_t column = 0;
  for (; column + 4 <= b.rows; column += 4) DotColumns<4>(a, b, column, out);
  for (; column < b.rows; ++column) DotColumns<1>(a, b, column, out);
}

// kM rows by kV vectors of the output, kept in registers for the whole sum.
template <int kM, int kV>
HWY_INLINE void MixTile(const In& a, int64_t row, const In& b, int64_t column, const Out& out) {
  const F32Tag f32;
  const auto step = static_cast<int64_t>(hn::Lanes(f32));
  const float* weights = a.row(row);
  F32Vec sum[kM][kV];
  for (int i = 0; i < kM; ++i) {
    for (int v = 0; v < kV; ++v) sum[i][v] = hn::Zero(f32);
  }
  for (int64_t j = 0; j < b.rows; ++j) {
    const float* y = b.row(j) + column;
    F32Vec right[kV];
    for (int v = 0; v < kV; ++v) right[v] = hn::LoadU(f32, y + v * step);
    for (int i = 0; i < kM; ++i) {
      const F32Vec left = hn::Set(f32, weights[i * a.stride + j]);
      for (int v = 0; v < kV; ++v) sum[i][v] = hn::MulAdd(left, right[v], sum[i][v]);
    }
  }
  for (int i = 0; i < kM; ++i) {
    for (int v = 0; v < kV; ++v) hn::StoreU(sum[i][v], f32, out.row(row + i) + column + v * step);
  }
}

template <int kM>
HWY_INLINE void MixRows(const In& a, int64_t row, const In& b, const Out& out) {
  const auto step = static_cast<int64_t>(hn::Lanes(F32Tag()));
  int64_t column = 0;
  for (; column + 2 * step <= b.columns; column += 2 * step) MixTile<kM, 2>(a, row, b, column, out);
  for (; column + step <= b.columns; column += step) MixTile<kM, 1>(a, row, b, column, out);
  for (; column < b.columns; ++column) {
    for (int i = 0; i < kM; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < b.rows; ++j) sum += a.row(row + i)[j] * b.row(j)[column];
      out.row(row + i)[column] = sum;
    }
  }
}

void MatmulAb(const In& a, const In& b, const Out& out) {
  int64_t row = 0;
  for (; row + 8 <= a.rows; row += 8) MixRows<8>(a, row, b, out);
  for (; row + 4 <= a.rows; row += 4) MixRows<4>(a, row, b, out);
  for (; row < a.rows; ++row) MixRows<1>(a, row, b, out);
}

}  // namespace dsv4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::cpu {

HWY_EXPORT(MatmulAbt);
HWY_EXPORT(MatmulAb);

void matmul_abt(const Matrix<const float>& a, const Matrix<const float>& b,
                const Matrix<float>& out) {
  HWY_DYNAMIC_DISPATCH(MatmulAbt)(a, b, out);
}
void matmul_ab(const Matrix<const float>& a, const Matrix<const float>& b,
               const Matrix<float>& out) {
  HWY_DYNAMIC_DISPATCH(MatmulAb)(a, b, out);
}

}  // namespace dsv4::cpu
#endif  // HWY_ONCE
