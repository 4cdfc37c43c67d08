// Tokens are processed in tiles, so that a row of fn is read once per tile. With fewer tiles than
// threads, the threads share the rows of fn instead; the bits of an element are the same.

#include "dsv4/ops/parts/mhc/mhc.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/cpu/matmul.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/float16.h"

namespace dsv4::mhc_kernel::cpu {
namespace {

constexpr int64_t kTokenTile = 4;
constexpr int64_t kFnTile = 4;        // rows of fn
constexpr int64_t kColumnTile = 512;  // columns of hc_post

float sigmoid(float x) {
  return 1.f / (1.f + std::exp(-x));
}

int64_t stream_offset(const TensorMeta& streams, int64_t token, int64_t stream) {
  return token * streams.stride[0] + stream * streams.stride[1];
}

// The common arguments of hc_pre and hc_head.
struct MixArgs {
  ConstTensorView streams, fn;
  TensorView out;
  float norm_eps;
};

// Tokens [begin, begin + count): their streams as f32 and their mixes after the norm.
class MixTile {
 public:
  explicit MixTile(const MixArgs& args)
      : args_(args),
        m_(args.streams.dim(1)),
        d_(args.streams.dim(2)),
        mixes_(args.fn.dim(0)),
        x_(static_cast<size_t>(kTokenTile * m_ * d_)),
        mix_(static_cast<size_t>(kTokenTile * mixes_)),
        mixed_(static_cast<size_t>(d_)) {}

  void load(int64_t begin, int64_t count) {
    begin_ = begin;
    const int64_t width = m_ * d_;
    for (int64_t i = 0; i < count * m_; ++i) {
      const int64_t at = stream_offset(args_.streams, begin + i / m_, i % m_);
      dsv4::cpu::load(args_.streams, at, d_, x_.data() + i * d_);
    }
    const float* fn = args_.fn.as<float>();
    const int64_t fn_stride = args_.fn.row_stride();
#pragma omp parallel for if (dsv4::cpu::worth_sharing(mixes_ * width))
    for (int64_t row = 0; row < mixes_; row += kFnTile) {
      const int64_t rows = std::min(kFnTile, mixes_ - row);
      dsv4::cpu::matmul_abt({x_.data(), count, width, width},
                            {fn + row * fn_stride, rows, width, fn_stride},
                            {mix_.data() + row, count, rows, mixes_});
    }
    for (int64_t i = 0; i < count; ++i) {
      const float mean =
          dsv4::cpu::sum_squares(x_.data() + i * width, width) / static_cast<float>(width);
      dsv4::cpu::scale(1.f / std::sqrt(mean + args_.norm_eps), mix(i), mix(i), mixes_);
    }
  }

  float* mix(int64_t i) {
    return mix_.data() + i * mixes_;
  }  // [fn rows] of token begin + i

  // out = sum_j (sigmoid(mix_j * scale + base_j) + eps) X_j
  void store_mixed(int64_t i, float scale, const float* base, float eps) {
    float pre[kMaxStreams];
    for (int64_t j = 0; j < m_; ++j) pre[j] = sigmoid(mix(i)[j] * scale + base[j]) + eps;
    dsv4::cpu::matmul_ab({pre, 1, m_, m_}, {x_.data() + i * m_ * d_, m_, d_, d_},
                         {mixed_.data(), 1, d_, d_});
    dsv4::cpu::store(args_.out, (begin_ + i) * args_.out.row_stride(), d_, mixed_.data());
  }

 private:
  const MixArgs args_;
  const int64_t m_, d_, mixes_;
  std::vector<float> x_;      // [kTokenTile, m, d]
  std::vector<float> mix_;    // [kTokenTile, fn rows]
  std::vector<float> mixed_;  // [d]
  int64_t begin_ = 0;
};

// Calls finish(tile, i, token) for every token after its mixes are computed.
template <class Finish>
void for_each_mixed_token(const MixArgs& args, const Finish& finish) {
  const int64_t t = args.streams.dim(0), mixes = args.fn.dim(0);
#pragma omp parallel if (t > kTokenTile && dsv4::cpu::worth_sharing(args.streams.numel() * mixes))
  {
    MixTile tile(args);
#pragma omp for
    for (int64_t begin = 0; begin < t; begin += kTokenTile) {
      const int64_t count = std::min(kTokenTile, t - begin);
      tile.load(begin, count);
      for (int64_t i = 0; i < count; ++i) finish(tile, i, begin + i);
    }
  }
}

// Divides every row (stride 1 inside, m between) or, transposed, every column by its sum + eps.
void normalize(float* b, int64_t m, int64_t outer, int64_t inner, float eps) {
  for (int64_t j = 0; j < m; ++j) {
    float sum = 0;
    for (int64_t k = 0; k < m; ++k) sum += b[j * outer + k * inner];
    for (int64_t k = 0; k < m; ++k) b[j * outer + k * inner] /= sum + eps;
  }
}

// docs/spec/dsv4.md 8.2. b: [m, m]
void sinkhorn(float* b, int64_t m, int iters, float eps) {
  for (int64_t j = 0; j < m; ++j) {
    float* row = b + j * m;
    const float largest = *std::max_element(row, row + m);
    for (int64_t k = 0; k < m; ++k) row[k] = std::exp(row[k] - largest);
  }
  normalize(b, m, m, 1, 0.f);
  for (int64_t i = 0; i < m * m; ++i) b[i] += eps;
  normalize(b, m, 1, m, eps);
  for (int i = 1; i < iters; ++i) {
    normalize(b, m, m, 1, eps);
    normalize(b, m, 1, m, eps);
  }
}

void finish_pre(const HcPreArgs& args, const float* mix, int64_t token) {
  const int64_t m = args.streams.dim(1);
  const float *scale = args.scale.as<float>(), *base = args.base.as<float>();
  float* post = args.post.row<float>(token);
  for (int64_t j = 0; j < m; ++j) post[j] = 2.f * sigmoid(mix[m + j] * scale[1] + base[m + j]);
  float comb[kMaxStreams * kMaxStreams];
  for (int64_t i = 0; i < m * m; ++i) comb[i] = mix[2 * m + i] * scale[2] + base[2 * m + i];
  sinkhorn(comb, m, args.sinkhorn_iters, args.hc_eps);
  float* out = args.comb.as<float>() + token * args.comb.stride[0];
  for (int64_t j = 0; j < m; ++j) std::copy_n(comb + j * m, m, out + j * args.comb.stride[1]);
}

// Columns [begin, begin + count) of one token, as the product of (post | comb^T) [m, 1 + m] and
// (y | X) [1 + m, count]. scratch: [1 + 2m, kColumnTile]
void mix_columns(const HcPostArgs& args, int64_t token, int64_t begin, int64_t count,
                 float* scratch) {
  const int64_t m = args.streams.dim(1);
  const float* post = args.post.row<float>(token);
  const float* comb = args.comb.as<float>() + token * args.comb.stride[0];
  float weights[kMaxStreams * (1 + kMaxStreams)];
  for (int64_t k = 0; k < m; ++k) {
    weights[k * (1 + m)] = post[k];
    for (int64_t j = 0; j < m; ++j)
      weights[k * (1 + m) + 1 + j] = comb[j * args.comb.stride[1] + k];
  }
  dsv4::cpu::load(args.y, token * args.y.row_stride() + begin, count, scratch);
  if (args.streams.dtype == DType::kBF16 && args.y.dtype == DType::kF32) {
    for (int64_t i = 0; i < count; ++i) scratch[i] = round_to_bf16(scratch[i]);
  }
  for (int64_t j = 0; j < m; ++j) {
    dsv4::cpu::load(args.streams, stream_offset(args.streams, token, j) + begin, count,
                    scratch + (1 + j) * kColumnTile);
  }
  float* out = scratch + (1 + m) * kColumnTile;
  dsv4::cpu::matmul_ab({weights, m, 1 + m, 1 + m}, {scratch, 1 + m, count, kColumnTile},
                       {out, m, count, kColumnTile});
  for (int64_t k = 0; k < m; ++k) {
    dsv4::cpu::store(args.streams, stream_offset(args.streams, token, k) + begin, count,
                     out + k * kColumnTile);
  }
}

// What a MixTile holds.
HostBytes mix_bytes(const ConstTensorView& streams, const ConstTensorView& fn) {
  const int64_t m = streams.dim(1), d = streams.dim(2);
  const int64_t floats = kTokenTile * (m * d + fn.dim(0)) + d;
  return {.per_thread = floats * static_cast<int64_t>(sizeof(float))};
}

}  // namespace

HostBytes host_bytes(const HcPreArgs& args) {
  return mix_bytes(args.streams, args.fn);
}

HostBytes host_bytes(const HcHeadArgs& args) {
  return mix_bytes(args.streams, args.fn);
}

HostBytes host_bytes(const HcMeanArgs& args) {
  return {.per_thread = 2 * args.streams.dim(2) * static_cast<int64_t>(sizeof(float))};
}

void run(const Context&, const HcPreArgs& args) {
  for_each_mixed_token({args.streams, args.fn, args.out, args.norm_eps},
                       [&](MixTile& tile, int64_t i, int64_t token) {
                         finish_pre(args, tile.mix(i), token);
                         tile.store_mixed(i, args.scale.as<float>()[0], args.base.as<float>(),
                                          args.hc_eps);
                       });
}

void run(const Context&, const HcHeadArgs& args) {
  for_each_mixed_token(
      {args.streams, args.fn, args.out, args.norm_eps}, [&](MixTile& tile, int64_t i, int64_t) {
        tile.store_mixed(i, args.scale.as<float>()[0], args.base.as<float>(), args.hc_eps);
      });
}

void run(const Context&, const HcPostArgs& args) {
  const int64_t t = args.streams.dim(0), m = args.streams.dim(1), d = args.streams.dim(2);
  const int64_t tiles = ceil_div(d, kColumnTile);
#pragma omp parallel if (dsv4::cpu::worth_sharing(args.streams.numel() * (1 + m)))
  {
    std::vector<float> scratch(static_cast<size_t>((1 + 2 * m) * kColumnTile));
#pragma omp for
    for (int64_t i = 0; i < t * tiles; ++i) {
      const int64_t begin = i % tiles * kColumnTile;
      mix_columns(args, i / tiles, begin, std::min(kColumnTile, d - begin), scratch.data());
    }
  }
}

void run(const Context&, const HcMeanArgs& args) {
  const int64_t t = args.streams.dim(0), m = args.streams.dim(1), d = args.streams.dim(2);
#pragma omp parallel if (t > 1 && dsv4::cpu::worth_sharing(args.streams.numel()))
  {
    std::vector<float> sum(static_cast<size_t>(d)), x(static_cast<size_t>(d));
#pragma omp for
    for (int64_t token = 0; token < t; ++token) {
      std::ranges::fill(sum, 0.f);
      for (int64_t j = 0; j < m; ++j) {
        dsv4::cpu::load(args.streams, stream_offset(args.streams, token, j), d, x.data());
        for (size_t i = 0; i < x.size(); ++i) sum[i] += x[i];
      }
      for (float& value : sum) value /= static_cast<float>(m);
      dsv4::cpu::store(args.out, token * args.out.row_stride(), d, sum.data());
    }
  }
}

}  // namespace dsv4::mhc_kernel::cpu
