// fp64 oracles of halves.h, and random arguments for its test and benchmark.

#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

std::vector<double> experts_hidden_oracle(const Context& context,
                                          const ExpertsHiddenArgs& args);  // [t * k, i]
// acc after the call, given its current contents, [t, n]; or rows, [t * k, n]
std::vector<double> experts_output_oracle(const Context& context, const ExpertsOutputArgs& args);
std::vector<double> experts_sum_oracle(const ExpertsSumArgs& args);  // acc after the call

namespace test {

// Where the rows of each token are in h (halves.h): those of token i, in their order, are
// [i * k, (i + 1) * k) of the result. experts: [t, k]; empty: t tokens go to one expert
inline std::vector<int64_t> rows_of_tokens(const ConstTensorView& experts, int64_t t) {
  const int64_t k = experts.empty() ? 1 : experts.dim(1);
  const auto id = [&](int64_t pair) {
    return experts.empty() ? 0 : experts.row<int32_t>(pair / k)[pair % k];
  };
  std::vector<int64_t> pairs(static_cast<size_t>(t * k)), rows;
  std::iota(pairs.begin(), pairs.end(), 0);
  std::stable_sort(pairs.begin(), pairs.end(), [&](int64_t a, int64_t b) { return id(a) < id(b); });
  std::vector<std::vector<int64_t>> of_token(static_cast<size_t>(t));
  for (size_t row = 0; row < pairs.size(); ++row)
    of_token[static_cast<size_t>(pairs[row] / k)].push_back(static_cast<int64_t>(row));
  for (const auto& own : of_token) rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

inline void copy_row(const ConstTensorView& from, int64_t row, const TensorView& to,
                     int64_t to_row) {
  const int64_t item = item_bytes(from.dtype);
  std::copy_n(from.data + row * from.row_stride() * item, from.dim(1) * item,
              to.data + to_row * to.row_stride() * item);
}

// For calls of one token at a time, which store their rows of h to the first of `hidden`: after
// that of the last token, all rows are where a call of all tokens stores them.
class RowsOfTokens {
 public:
  // hidden: [t * k, i]. experts: [t, k], complete at the last call
  RowsOfTokens(const ConstTensorView& experts, const TensorView& hidden, int64_t t)
      : experts_(experts),
        hidden_(hidden),
        t_(t),
        by_token_(std::make_shared<Buffer>(
            hidden.dtype, std::initializer_list<int64_t>{hidden.dim(0), hidden.dim(1)})) {}

  void operator()(int64_t i) const {
    const int64_t k = hidden_.dim(0) / t_;
    for (int64_t j = 0; j < k; ++j) copy_row(hidden_, j, *by_token_, i * k + j);
    if (i + 1 < t_) return;
    const std::vector<int64_t> rows = rows_of_tokens(experts_, t_);
    for (size_t j = 0; j < rows.size(); ++j)
      copy_row(*by_token_, static_cast<int64_t>(j), hidden_, rows[j]);
  }

 private:
  ConstTensorView experts_;
  TensorView hidden_;
  int64_t t_;
  std::shared_ptr<Buffer> by_token_;  // rows so far, those of a token side by side
};

// The halves of a call of experts; what stands between them has the dtype of activations.
template <class Memory>
ExpertsHiddenArgs first_half(Memory& memory, const Context& context, const ExpertsArgs& whole) {
  return {.x = whole.x,
          .stack = whole.stack,
          .experts = whole.experts,
          .weights = whole.weights,
          .swiglu_limit = whole.swiglu_limit,
          .hidden = memory.output(activation_dtype(context),
                                  {whole.x.dim(0) * slots(whole), whole.stack.inner()})};
}

inline ExpertsOutputArgs second_half(const ConstTensorView& hidden, const ExpertsArgs& whole) {
  return {.hidden = hidden,
          .stack = whole.stack,
          .experts = whole.experts,
          .acc = whole.acc,
          .add = whole.add};
}

}  // namespace test
}  // namespace dsv4
