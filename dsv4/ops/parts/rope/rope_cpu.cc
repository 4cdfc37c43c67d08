#include "dsv4/ops/parts/rope/rope.h"

#include <cmath>
#include <vector>

#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"

namespace dsv4::rope_kernel::cpu {
namespace {

// cos and sin of one token's angles, shared by its heads.
struct Turn {
  std::vector<float> cosine, sine;  // [num_pairs]

  explicit Turn(size_t num_pairs) : cosine(num_pairs), sine(num_pairs) {}

  // The angle is an f32; cos and sin are computed in f64, where the range reduction is exact at any
  // angle, and rounded once.
  void set(int32_t position, const float* freqs, bool inverse) {
    for (size_t i = 0; i < cosine.size(); ++i) {
      const double phi = static_cast<double>(static_cast<float>(position) * freqs[i]);
      cosine[i] = static_cast<float>(std::cos(phi));
      sine[i] = static_cast<float>(inverse ? -std::sin(phi) : std::sin(phi));
    }
  }

  // x: [2 * num_pairs], in place
  void apply(float* x) const {
    for (size_t i = 0; i < cosine.size(); ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cosine[i] - b * sine[i];
      x[2 * i + 1] = a * sine[i] + b * cosine[i];
    }
  }
};

}  // namespace

void run(const Context&, const RopeArgs& args) {
  const int64_t tokens = args.x.dim(0), heads = args.x.dim(1);
  const int64_t width = 2 * args.freqs.dim(0), skip = args.x.dim(2) - width;
  const auto* positions = args.positions.as<int32_t>();
#pragma omp parallel if (tokens > 1 && dsv4::cpu::worth_sharing((40 + 8 * heads) * tokens * width))
  {
    Turn turn(static_cast<size_t>(width / 2));
    std::vector<float> x(static_cast<size_t>(width));
#pragma omp for
    for (int64_t t = 0; t < tokens; ++t) {
      turn.set(positions[t], args.freqs.as<float>(), args.inverse);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t offset = t * args.x.stride[0] + h * args.x.stride[1] + skip;
        dsv4::cpu::load(args.x, offset, width, x.data());
        turn.apply(x.data());
        dsv4::cpu::store(args.x, offset, width, x.data());
      }
    }
  }
}

}  // namespace dsv4::rope_kernel::cpu
