// The implementation cpu of experts.h: waves of experts, each gate and up, SwiGLU, down, combine.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/quant.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/ops/gemm/cpu/jobs.h"
#include "dsv4/ops/parts/experts/cpu/pairs.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::experts_kernel::cpu {
namespace {

// Scratch grows with the number of token-expert pairs in flight, so tokens are processed in chunks,
// and experts in waves that end once they contain this many pairs.
constexpr int64_t kChunkTokens = 1024;
constexpr int64_t kWavePairs = 512;

// One chunk of tokens.
class Chunk {
 public:
  Chunk(const Context& context, const ExpertsArgs& args)
      : args_(args),
        plan_(make_pairs(args.experts, args.x.dim(0), args.stack.size())),
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
    quantized_x_ = quantized_rows(args_.x);
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
    add_in_order(plan_, base, y, args_.acc);
  }

  // hidden is what down multiplies: Q8 of h where its expert wants that.
  void activate(int64_t base, const TensorView& gate, const TensorView& up,
                const std::vector<bool>& quantize, const TensorView& hidden) const {
    const auto weight = [&](int64_t p) {
      return weight_of(args_.weights, plan_.row[static_cast<size_t>(base + p)]);
    };
    const auto store = [&](int64_t p, float* h) {
      if (quantize[static_cast<size_t>(p)]) dsv4::cpu::fake_q8_row(h, inner_, kActivationGroup, h);
      dsv4::cpu::store(hidden, p * inner_, inner_, h);
    };
    GatedPairs{gate, up, weight, args_.activation, args_.swiglu_limit, official_, store}.run();
  }

  const ExpertsArgs& args_;
  const Pairs plan_;
  const bool official_;
  const DType middle_;  // of gate, up and the outputs of down
  const int64_t d_, inner_;
  Buffer quantized_x_;  // [t, d] f32
};

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
  return !args.stack.is_file() ? "kernel images of experts" : nullptr;
}

void run(const Context& context, const ExpertsArgs& args) {
  check_ids(args.experts, args.stack.size());
  const int64_t t = args.x.dim(0);
  if (!args.add) fill_zero(args.acc);
  if (args.stack.empty()) return add_addend(args.addend, args.acc);
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
  add_addend(args.addend, args.acc);
}

}  // namespace dsv4::experts_kernel::cpu
