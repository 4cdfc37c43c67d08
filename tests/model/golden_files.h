// Reads the golden folders of tests/golden (each has a README: source, command, date, license).

#pragma once

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/engine/score.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/model/model.h"

namespace dsv4::test {

inline const std::string kGoldenFolder = "tests/golden/";  // tests run in the repository root

inline std::vector<int32_t> read_ids(const std::string& file) {
  std::ifstream in(file);
  return {std::istream_iterator<int32_t>(in), std::istream_iterator<int32_t>()};
}

inline std::vector<int32_t> random_ids(int64_t n, int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(vocab)));
  return ids;
}

// Logits of every position, [T, V].
inline Buffer all_logits(const Model& model, const Context& context, std::span<const int32_t> ids,
                         int64_t chunk) {
  Buffer logits(DType::kF32, {static_cast<int64_t>(ids.size()), model.config().vocab_size});
  score(model, context, ids, chunk, [&](int64_t first, const ConstTensorView& part) {
    std::copy_n(part.as<float>(), part.numel(), logits.view().row<float>(first));
  });
  return logits;
}
inline Buffer all_logits(const Model& model, Numerics numerics, std::span<const int32_t> ids,
                         int64_t chunk) {
  return all_logits(model, Context{.numerics = numerics}, ids, chunk);
}

// Largest absolute difference of two f32 tensors of one size; NaN is large.
inline double largest_difference(const Buffer& a, const Buffer& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.view().numel(); ++i) {
    const double off =
        std::abs(static_cast<double>(a.as<float>()[i]) - static_cast<double>(b.as<float>()[i]));
    if (!(off <= largest)) largest = off;
  }
  return largest;
}

inline bool same_bits(const ConstTensorView& a, const ConstTensorView& b) {
  return a.bytes() == b.bytes() && std::equal(a.data, a.data + a.bytes(), b.data);
}

}  // namespace dsv4::test
