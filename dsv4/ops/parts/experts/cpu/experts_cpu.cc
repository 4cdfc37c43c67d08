// The implementation cpu of experts.h: waves of experts, each gate and up, SwiGLU, down, combine.

#include <omp.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/quant.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/ops/gemm/cpu/jobs.h"
#include "dsv4/ops/parts/experts/cpu/swiglu.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::experts_kernel::cpu {
namespace {

// Scratch grows with the number of token-expert pairs in flight, so tokens are processed in chunks,
// and experts in waves that end once they contain this many pairs.
constexpr int64_t kChunkTokens = 1024;
constexpr int64_t kWavePairs = 512;
// Columns of acc that one thread sums at a time.
constexpr int64_t kCombineColumns = 256;

// The token-expert pairs of a chunk in order of expert, then token, then slot: the position among
// the token's experts.
struct Plan {
  std::vector<int64_t> first;  // [e + 1]: pairs of expert i are [first[i], first[i + 1])
  std::vector<int32_t> token;  // [pairs]
  std::vector<float> weight;   // [pairs]
};

Plan make_plan(const ExpertsArgs& args) {
  const int64_t t = args.x.dim(0), k = slots(args);
  Plan plan{.first = std::vector<int64_t>(static_cast<size_t>(args.stack.size()) + 1)};
  if (args.experts.empty()) {
    plan.first[1] = t;
    plan.token.resize(static_cast<size_t>(t));
    std::iota(plan.token.begin(), plan.token.end(), 0);
    plan.weight.assign(static_cast<size_t>(t), 1.f);
    return plan;
  }
  for (int64_t i = 0; i < t; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      ++plan.first[static_cast<size_t>(args.experts.row<int32_t>(i)[j]) + 1];
    }
  }
  for (size_t e = 1; e < plan.first.size(); ++e) plan.first[e] += plan.first[e - 1];
  std::vector<int64_t> next = plan.first;
  plan.token.resize(static_cast<size_t>(t * k));
  plan.weight.resize(static_cast<size_t>(t * k));
  for (int64_t i = 0; i < t; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const auto e = static_cast<size_t>(args.experts.row<int32_t>(i)[j]);
      const auto pair = static_cast<size_t>(next[e]++);
      plan.token[pair] = static_cast<int32_t>(i);
      plan.weight[pair] = args.weights.row<float>(i)[j];
    }
  }
  return plan;
}

// One chunk of tokens.
class Chunk {
 public:
  Chunk(const Context& context, const ExpertsArgs& args)
      : args_(args),
        plan_(make_plan(args)),
        official_(context.numerics == Numerics::kOfficial),
        middle_(official_ ? DType::kBF16 : DType::kF32),
        d_(args.x.dim(1)),
        inner_(args.stack.inner()) {
    if (official_) quantize_x();
  }

  void run() {
    const size_t num_experts = args_.stack.file().size();
    for (size_t e = 0; e < num_experts;) {
      const size_t begin = e;
      while (e < num_experts && plan_.first[e] - plan_.first[begin] < kWavePairs) ++e;
      if (plan_.first[e] > plan_.first[begin]) wave(begin, e);
    }
  }

 private:
  // A projection of one expert: rows of `x` (gathered by token, or in pair order) times its weight.
  struct Projection {
    const WeightView& weight;
    ConstTensorView x;
    bool gather;
    TensorView out;  // [pairs of the wave, n]
  };

  void quantize_x() {
    const auto quantized = [](const ExpertWeights& expert) {
      return expert.w1.quantized_activations() || expert.w3.quantized_activations();
    };
    if (std::none_of(args_.stack.file().begin(), args_.stack.file().end(), quantized)) return;
    const int64_t t = args_.x.dim(0);
    quantized_x_ = Buffer(DType::kF32, {t, d_});
#pragma omp parallel for if (dsv4::cpu::worth_sharing(10 * t * d_))
    for (int64_t i = 0; i < t; ++i) {
      float* row = quantized_x_.as<float>() + i * d_;
      dsv4::cpu::load(args_.x, i * args_.x.row_stride(), d_, row);
      dsv4::cpu::fake_q8_row(row, d_, kActivationGroup, row);
    }
  }

  ConstTensorView x_for(const WeightView& w) const {
    return official_ && w.quantized_activations() ? quantized_x_.view() : args_.x;
  }

  void add_job(std::vector<gemm::cpu::GemmJob>& jobs, size_t e, int64_t base,
               const Projection& projection) const {
    const int64_t begin = plan_.first[e], end = plan_.first[e + 1];
    gemm::cpu::GemmJob job{.x = projection.x,
                           .weight = projection.weight,
                           .out = projection.out.slice(0, begin - base, end - base)};
    if (projection.gather) {
      job.gather = plan_.token.data() + begin;
    } else {
      job.x = projection.x.slice(0, begin - base, end - base);
    }
    jobs.push_back(job);
  }

  void wave(size_t begin, size_t end) {
    const int64_t base = plan_.first[begin], pairs = plan_.first[end] - base;
    const Buffer gate(middle_, {pairs, inner_}), up(middle_, {pairs, inner_});
    const Buffer hidden(DType::kF32, {pairs, inner_}), y(middle_, {pairs, d_});
    std::vector<gemm::cpu::GemmJob> first, second;
    std::vector<bool> quantize_hidden;
    for (size_t e = begin; e < end; ++e) {
      if (plan_.first[e] == plan_.first[e + 1]) continue;
      const ExpertWeights& expert = args_.stack.file()[e];
      add_job(first, e, base, {expert.w1, x_for(expert.w1), true, gate});
      add_job(first, e, base, {expert.w3, x_for(expert.w3), true, up});
      add_job(second, e, base, {expert.w2, hidden, false, y});
      quantize_hidden.insert(quantize_hidden.end(),
                             static_cast<size_t>(plan_.first[e + 1] - plan_.first[e]),
                             official_ && expert.w2.quantized_activations());
    }
    gemm::cpu::run_gemms(first);
    activate(base, gate, up, quantize_hidden, hidden);
    gemm::cpu::run_gemms(second);
    combine(base, y);
  }

  void activate(int64_t base, const TensorView& gate, const TensorView& up,
                const std::vector<bool>& quantize, const TensorView& hidden) const {
    const float limit =
        args_.swiglu_limit > 0 ? args_.swiglu_limit : std::numeric_limits<float>::infinity();
    const auto padded = static_cast<size_t>(align_up(inner_, kSwigluPad));
#pragma omp parallel if (dsv4::cpu::worth_sharing(30 * gate.numel()))
    {
      std::vector<float> g(padded), u(padded);
      std::vector<uint16_t> rounded(padded);
#pragma omp for
      for (int64_t p = 0; p < gate.dim(0); ++p) {
        dsv4::cpu::load(gate, p * inner_, inner_, g.data());
        dsv4::cpu::load(up, p * inner_, inner_, u.data());
        gated(args_.activation, g.data(), u.data(), plan_.weight[static_cast<size_t>(base + p)],
              limit, g.data(), inner_);
        if (official_) {
          dsv4::cpu::narrow_bf16(g.data(), rounded.data(), inner_);
          dsv4::cpu::widen_bf16(rounded.data(), g.data(), inner_);
        }
        if (quantize[static_cast<size_t>(p)]) {
          dsv4::cpu::fake_q8_row(g.data(), inner_, kActivationGroup, g.data());
        }
        dsv4::cpu::store(hidden, p * inner_, inner_, g.data());
      }
    }
  }

  // Pairs are in ascending order of expert, and every thread adds its columns in that order.
  void combine(int64_t base, const TensorView& y) const {
#pragma omp parallel for if (dsv4::cpu::worth_sharing(2 * y.numel()))
    for (int64_t c = 0; c < d_; c += kCombineColumns) {
      std::array<float, kCombineColumns> row;
      const int64_t count = std::min(kCombineColumns, d_ - c);
      for (int64_t p = 0; p < y.dim(0); ++p) {
        dsv4::cpu::load(y, p * d_ + c, count, row.data());
        dsv4::cpu::axpy(1.f, row.data(),
                        args_.acc.row<float>(plan_.token[static_cast<size_t>(base + p)]) + c,
                        count);
      }
    }
  }

  const ExpertsArgs& args_;
  const Plan plan_;
  const bool official_;
  const DType middle_;  // of gate, up and the outputs of down
  const int64_t d_, inner_;
  Buffer quantized_x_;  // [t, d] f32
};

// Called before anything is written.
void check_ids(const ExpertsArgs& args) {
  if (args.experts.empty()) return;
  const auto num_experts = static_cast<int32_t>(args.stack.size());
  for (int64_t t = 0; t < args.experts.dim(0); ++t) {
    for (int64_t j = 0; j < args.experts.dim(1); ++j) {
      const int32_t id = args.experts.row<int32_t>(t)[j];
      DSV4_CHECK(id >= 0 && id < num_experts, "experts[{}, {}] is {}, there are {} experts", t, j,
                 id, num_experts);
    }
  }
}

void add_addend(const ExpertsArgs& args) {
  if (args.addend.empty()) return;
  const int64_t t = args.acc.dim(0), d = args.acc.dim(1);
#pragma omp parallel if (dsv4::cpu::worth_sharing(2 * t * d))
  {
    std::vector<float> row(static_cast<size_t>(d));
#pragma omp for
    for (int64_t i = 0; i < t; ++i) {
      dsv4::cpu::load(args.addend, i * args.addend.row_stride(), d, row.data());
      dsv4::cpu::axpy(1.f, row.data(), args.acc.row<float>(i), d);
    }
  }
}

}  // namespace

// Gate, up, hidden and output of the pairs of a wave, their packed activations for two products,
// and the quantized input of a chunk.
HostBytes host_bytes(const ExpertsArgs& args) {
  if (args.stack.empty()) return {};
  const int64_t d = args.x.dim(1), inner = args.stack.inner();
  const int64_t chunk = std::min(args.x.dim(0), kChunkTokens);
  const int64_t pairs = std::min(kWavePairs - 1 + chunk, chunk * slots(args));
  HostBytes bytes = gemm::cpu::gemm_bytes(2 * pairs, std::max(d, inner));
  bytes.shared += (chunk * d + pairs * (3 * inner + d)) * static_cast<int64_t>(sizeof(float));
  return bytes;
}

const char* reject(const Context&, const ExpertsArgs& args) {
  return args.stack.is_image() ? "kernel images of experts" : nullptr;
}

void run(const Context& context, const ExpertsArgs& args) {
  check_ids(args);
  const int64_t t = args.x.dim(0);
  if (!args.add) {
    for (int64_t i = 0; i < t; ++i) std::fill_n(args.acc.row<float>(i), args.acc.dim(1), 0.f);
  }
  if (args.stack.empty()) return add_addend(args);
  for (int64_t begin = 0; begin < t; begin += kChunkTokens) {
    const int64_t end = std::min(t, begin + kChunkTokens);
    ExpertsArgs part = args;
    part.x = args.x.slice(0, begin, end);
    if (!args.experts.empty()) {
      part.experts = args.experts.slice(0, begin, end);
      part.weights = args.weights.slice(0, begin, end);
    }
    part.acc = args.acc.slice(0, begin, end);
    Chunk(context, part).run();
  }
  add_addend(args);
}

}  // namespace dsv4::experts_kernel::cpu
