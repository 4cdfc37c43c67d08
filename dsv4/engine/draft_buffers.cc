#include "dsv4/engine/draft_buffers.h"

#include <algorithm>
#include <array>

namespace dsv4 {
namespace {

// A tensor without rows takes no memory.
struct Shapes {
  TensorMeta streams, chain, logits, hidden, before;
};

Shapes shapes_of(const ModelConfig& c, Numerics numerics, const CacheLimits& limits) {
  const DType act = numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32;
  const int64_t rows = draft_logits_rows(c, limits), most = limits.max_sequences;
  const bool mtp = limits.drafter == DrafterKind::kMtp;
  const int64_t guesses = limits.drafter == DrafterKind::kDspark ? rows : 0;
  const auto of_streams = [&](int64_t n) {
    return TensorMeta::contiguous(act, {mtp ? n : 0, c.hc_mult, c.hidden_size});
  };
  return {.streams = of_streams(limits.max_batch_tokens + most),
          .chain = of_streams(most),
          .logits = TensorMeta::contiguous(DType::kF32, {rows, c.vocab_size}),
          .hidden = TensorMeta::contiguous(act, {guesses, c.hidden_size}),
          .before = TensorMeta::contiguous(act, {guesses, c.dspark.markov_rank})};
}

Buffer buffer_of(const TensorMeta& meta, Memory& memory) {
  if (meta.numel() == 0) return {};
  if (meta.rank == 2) return {meta.dtype, {meta.dim(0), meta.dim(1)}, memory};
  return {meta.dtype, {meta.dim(0), meta.dim(1), meta.dim(2)}, memory};
}

}  // namespace

int64_t draft_logits_rows(const ModelConfig& config, const CacheLimits& limits) {
  switch (limits.drafter) {
    case DrafterKind::kNone:
      return 0;
    case DrafterKind::kMtp:
      return limits.max_sequences;
    case DrafterKind::kDspark:
      return limits.max_sequences * std::min(limits.max_drafts, config.dspark.block_size);
  }
  return 0;
}

DraftBuffers::DraftBuffers(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
                           Memory& memory) {
  const Shapes shapes = shapes_of(config, numerics, limits);
  streams_ = buffer_of(shapes.streams, memory);
  for (Buffer& chain : chain_) chain = buffer_of(shapes.chain, memory);
  logits_ = buffer_of(shapes.logits, memory);
  hidden_ = buffer_of(shapes.hidden, memory);
  before_ = buffer_of(shapes.before, memory);
}

int64_t DraftBuffers::bytes(const ModelConfig& config, Numerics numerics,
                            const CacheLimits& limits) {
  const Shapes shapes = shapes_of(config, numerics, limits);
  return shapes.streams.bytes() + 2 * shapes.chain.bytes() + shapes.logits.bytes() +
         shapes.hidden.bytes() + shapes.before.bytes();
}

}  // namespace dsv4
