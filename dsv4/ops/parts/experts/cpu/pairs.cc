#include "dsv4/ops/parts/experts/cpu/pairs.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/quant.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/parts/experts/cpu/swiglu.h"

namespace dsv4::experts_kernel {
namespace {

// Columns of acc that one thread sums at a time.
constexpr int64_t kCombineColumns = 256;

}  // namespace

Pairs make_pairs(const ConstTensorView& ids, int64_t t, int64_t num_experts, int64_t first_id) {
  Pairs pairs{.first = std::vector<int64_t>(static_cast<size_t>(num_experts) + 1)};
  if (ids.empty()) {
    pairs.first[1] = t;
    pairs.token.resize(static_cast<size_t>(t));
    std::iota(pairs.token.begin(), pairs.token.end(), 0);
    pairs.row = pairs.token;
    return pairs;
  }
  const int64_t k = ids.dim(1);
  // use(expert, i, j) for the pairs of these experts, by token and slot
  const auto for_each_pair = [&](const auto& use) {
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = ids.row<int32_t>(i)[j] - first_id;
        if (0 <= e && e < num_experts) use(static_cast<size_t>(e), i, j);
      }
    }
  };
  for_each_pair([&](size_t e, int64_t, int64_t) { ++pairs.first[e + 1]; });
  for (size_t e = 1; e < pairs.first.size(); ++e) pairs.first[e] += pairs.first[e - 1];
  std::vector<int64_t> next = pairs.first;
  pairs.token.resize(static_cast<size_t>(pairs.first.back()));
  pairs.row.resize(static_cast<size_t>(pairs.first.back()));
  for_each_pair([&](size_t e, int64_t i, int64_t j) {
    const auto pair = static_cast<size_t>(next[e]++);
    pairs.token[pair] = static_cast<int32_t>(i);
    pairs.row[pair] = static_cast<int32_t>(i * k + j);
  });
  return pairs;
}

void check_ids(const ConstTensorView& ids, int64_t num_experts) {
  if (ids.empty()) return;
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    for (int64_t j = 0; j < ids.dim(1); ++j) {
      const int32_t id = ids.row<int32_t>(t)[j];
      DSV4_CHECK(id >= 0 && id < num_experts, "experts[{}, {}] is {}, there are {} experts", t, j,
                 id, num_experts);
    }
  }
}

float weight_of(const ConstTensorView& weights, int32_t row) {
  if (weights.empty()) return 1.f;
  const int64_t k = weights.dim(1);
  return weights.row<float>(row / k)[row % k];
}

Buffer quantized_rows(const ConstTensorView& x) {
  std::vector<int32_t> all(static_cast<size_t>(x.dim(0)));
  std::iota(all.begin(), all.end(), 0);
  return quantized_rows(x, all);
}

Buffer quantized_rows(const ConstTensorView& x, std::span<const int32_t> rows) {
  const int64_t n = std::ssize(rows), d = x.dim(1);
  Buffer quantized(DType::kF32, {n, d});
#pragma omp parallel for if (dsv4::cpu::worth_sharing(10 * n * d))
  for (int64_t i = 0; i < n; ++i) {
    float* row = quantized.as<float>() + i * d;
    dsv4::cpu::load(x, rows[static_cast<size_t>(i)] * x.row_stride(), d, row);
    dsv4::cpu::fake_q8_row(row, d, kActivationGroup, row);
  }
  return quantized;
}

void GatedPairs::run() const {
  const int64_t inner = gate.dim(1);
  const float most = limit > 0 ? limit : std::numeric_limits<float>::infinity();
  const auto padded = static_cast<size_t>(align_up(inner, kSwigluPad));
#pragma omp parallel if (dsv4::cpu::worth_sharing(30 * gate.numel()))
  {
    std::vector<float> g(padded), u(padded);
    std::vector<uint16_t> rounded(padded);
#pragma omp for
    for (int64_t p = 0; p < gate.dim(0); ++p) {
      dsv4::cpu::load(gate, p * inner, inner, g.data());
      dsv4::cpu::load(up, p * inner, inner, u.data());
      gated(activation, g.data(), u.data(), weight(p), most, g.data(), inner);
      if (official) {
        dsv4::cpu::narrow_bf16(g.data(), rounded.data(), inner);
        dsv4::cpu::widen_bf16(rounded.data(), g.data(), inner);
      }
      store(p, g.data());
    }
  }
}

namespace {

// Every thread adds its columns in the order of the pairs [base, base + n). row(p): that of pair p
template <class Row>
void add_pairs(const Pairs& pairs, int64_t base, int64_t n, const ConstTensorView& y,
               const TensorView& acc, const Row& row) {
  const int64_t d = y.dim(1);
#pragma omp parallel for if (dsv4::cpu::worth_sharing(2 * n * d))
  for (int64_t c = 0; c < d; c += kCombineColumns) {
    std::array<float, kCombineColumns> values;
    const int64_t count = std::min(kCombineColumns, d - c);
    for (int64_t p = base; p < base + n; ++p) {
      dsv4::cpu::load(y, row(p) * y.row_stride() + c, count, values.data());
      dsv4::cpu::axpy(1.f, values.data(), acc.row<float>(pairs.token[static_cast<size_t>(p)]) + c,
                      count);
    }
  }
}

}  // namespace

void add_in_order(const Pairs& pairs, int64_t base, const ConstTensorView& y,
                  const TensorView& acc) {
  add_pairs(pairs, base, y.dim(0), y, acc, [&](int64_t p) { return p - base; });
}

void add_in_order(const Pairs& pairs, const int32_t* rows, const ConstTensorView& y,
                  const TensorView& acc) {
  add_pairs(pairs, 0, std::ssize(pairs.token), y, acc, [&](int64_t p) { return int64_t{rows[p]}; });
}

void add_addend(const ConstTensorView& addend, const TensorView& acc) {
  if (addend.empty()) return;
  const int64_t t = acc.dim(0), d = acc.dim(1);
#pragma omp parallel if (dsv4::cpu::worth_sharing(2 * t * d))
  {
    std::vector<float> row(static_cast<size_t>(d));
#pragma omp for
    for (int64_t i = 0; i < t; ++i) {
      dsv4::cpu::load(addend, i * addend.row_stride(), d, row.data());
      dsv4::cpu::axpy(1.f, row.data(), acc.row<float>(i), d);
    }
  }
}

void fill_zero(const TensorView& acc) {
  for (int64_t i = 0; i < acc.dim(0); ++i) std::fill_n(acc.row<float>(i), acc.dim(1), 0.f);
}

}  // namespace dsv4::experts_kernel
