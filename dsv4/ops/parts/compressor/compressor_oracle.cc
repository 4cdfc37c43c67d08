#include "dsv4/ops/parts/compressor/compressor_case.h"

#include <algorithm>
#include <cmath>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

// Softmax-pools channel c of block w, whose tokens and, with overlap, those before lie in `state`.
double pool_channel(const StateLayout& layout, const double* state, int64_t w, int64_t c) {
  const int64_t own = w * layout.ratio, begin = layout.overlap ? own - layout.ratio : own;
  std::vector<double> gate, value;
  for (int64_t t = std::max<int64_t>(0, begin); t < own + layout.ratio; ++t) {
    const int64_t half = layout.overlap && t >= own ? layout.width : 0;
    const double* kv = state + layout.row_of(t) * int64_t{layout.columns()} + half + c;
    value.push_back(kv[0]);
    gate.push_back(kv[layout.plane()]);
  }
  const double m = *std::max_element(gate.begin(), gate.end());
  double sum = 0, pooled = 0;
  for (size_t i = 0; i < gate.size(); ++i) {
    sum += std::exp(gate[i] - m);
    pooled += std::exp(gate[i] - m) * value[i];
  }
  return pooled / sum;
}

}  // namespace

CompressorWant compressor_oracle(const CompressorArgs& args) {
  const StateLayout& layout = args.layout;
  const int64_t columns = layout.columns(), ratio = layout.ratio;
  CompressorWant want;
  for (int64_t i = 0; i < args.state.numel(); ++i) {
    want.state.push_back(oracle::value(args.state, i));
  }
  for (int64_t i = 0; i < args.start.numel(); ++i) {
    if (args.cu_tokens.as<int32_t>()[i] == args.cu_tokens.as<int32_t>()[i + 1]) continue;
    double* state = want.state.data() +
                    args.state_slots.as<int32_t>()[i] * static_cast<int64_t>(layout.floats());
    int64_t position = args.start.as<int32_t>()[i];
    for (int64_t t = args.cu_tokens.as<int32_t>()[i]; t < args.cu_tokens.as<int32_t>()[i + 1];
         ++t) {
      const std::vector<double> kv = oracle::row(args.kv, t), gate = oracle::row(args.gate, t);
      const std::vector<double> ape = oracle::row(args.ape, position % ratio);
      double* row = state + layout.row_of(position) * columns;
      for (int64_t c = 0; c < columns; ++c) {
        const auto at = static_cast<size_t>(c);
        row[c] = kv[at];
        row[layout.plane() + c] = gate[at] + ape[at];
      }
      if (++position % ratio != 0) continue;
      for (int64_t c = 0; c < layout.width; ++c)
        want.out.push_back(pool_channel(layout, state, position / ratio - 1, c));
    }
  }
  want.out.resize(static_cast<size_t>(args.out.numel()), 0.0);
  return want;
}

}  // namespace dsv4
