#include "dsv4/engine/workspace.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

int64_t logits_rows(const CacheLimits& limits) {
  return limits.max_logits_rows > 0 ? limits.max_logits_rows : limits.max_sequences;
}

// ops/linear packs the activations of up to 1536 tokens as f32.
int64_t linear_bytes(const ModelConfig& m, int64_t tokens) {
  const int64_t widest =
      std::max({m.hidden_size, m.q_lora_rank, m.num_heads * m.head_dim / m.o_groups,
                m.o_groups * m.o_lora_rank, m.expert_dim * m.shared_experts});
  return std::min<int64_t>(tokens, 1536) * align_up(widest, 64) * kFloatBytes;
}

// ops/experts works on chunks of 1024 tokens, and in waves of whole experts that end once they hold
// 512 (token, expert) pairs: gate, up, hidden and output of each pair, and its packed activations
// once for the gate and once for the up product.
int64_t experts_bytes(const ModelConfig& m, int64_t tokens) {
  const int64_t chunk = std::min<int64_t>(tokens, 1024);
  const int64_t pairs = std::min(511 + chunk, chunk * m.experts_per_token);
  const int64_t inner = m.expert_dim * m.shared_experts;  // the shared expert is the widest
  const int64_t per_pair =
      3 * inner + m.hidden_size + 2 * align_up(std::max(m.hidden_size, inner), 64);
  return (chunk * m.hidden_size + pairs * per_pair) * kFloatBytes;
}

// What a thread keeps or takes for itself. Vectors that grow with the queries may be three times
// as large as their content while they move.
int64_t thread_bytes(const ModelConfig& m, int64_t context) {
  constexpr int64_t kTiles = int64_t{2} << 20;  // decoded tiles, waiting sums, rows
  int64_t entries = 0, scores = 0;
  for (const CacheGroupSpec& group : cache_groups(m)) {
    if (group.keep_tokens > 0) continue;
    const int64_t visible = context / group.ratio;
    entries = std::max(entries, group.has_index ? std::min(m.index_topk, visible) : visible);
    if (group.has_index) scores = std::max(scores, visible);
  }
  const int64_t keys = std::min(m.window, context) + entries;
  const int64_t attention = keys * (m.head_dim + 16) * kFloatBytes;
  const int64_t selection = scores * kFloatBytes;
  const int64_t sampling = 16 * m.vocab_size;
  const int64_t hyper = 8 * m.hc_mult * m.hidden_size * kFloatBytes;
  return 3 * (attention + std::max(selection, sampling)) + hyper + kTiles;
}

}  // namespace

Workspace plan_workspace(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
                         int threads) {
  const int64_t tokens = limits.max_batch_tokens;
  const StepLimits step{.tokens = tokens,
                        .sequences = limits.max_sequences,
                        .context = limits.max_tokens,
                        .logits_rows = logits_rows(limits)};
  return {.scratch = forward_scratch(config, numerics, step),
          .logits = logits_rows(limits) * config.vocab_size * kFloatBytes,
          .kernels = std::max(linear_bytes(config, tokens), experts_bytes(config, tokens)) +
                     threads * thread_bytes(config, limits.max_tokens)};
}

}  // namespace dsv4
