#include "dsv4/engine/device_workspace.h"

#include <algorithm>

#include "dsv4/engine/workspace.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

// What cuBLASLt takes for a product; attention's parts on Hopper (35 MB at most) take the same
// bytes at another time. Not counted: those of cuda_mma for lists over 1280 rows (up to 256 MiB).
constexpr int64_t kLibraryBytes = int64_t{32} << 20;

// ops/experts keeps gate, up, hidden and output of every (token, expert) pair of a call, and the
// quantized input.
int64_t experts_bytes(const ModelConfig& m, int64_t tokens) {
  const int64_t inner = m.expert_dim * std::max<int64_t>(1, m.shared_experts);
  const int64_t pairs = tokens * m.experts_per_token;
  return pairs * (3 * inner + m.hidden_size) * kFloatBytes + 2 * tokens * m.hidden_size;
}

}  // namespace

// A decode step is padded to at most twice its sequences and twice its context.
int64_t device_list_bytes(const ModelConfig& config, Numerics numerics, const CacheLimits& limits) {
  CacheLimits decode = limits;
  decode.max_batch_tokens = 2 * limits.max_sequences;
  decode.max_sequences = 2 * limits.max_sequences;
  for (const CacheGroupSpec& group : cache_groups(config)) {
    if (group.has_index)
      decode.max_tokens = std::max(decode.max_tokens, group.ratio * config.index_topk);
  }
  decode.max_tokens *= 2;
  const auto lists = [&](const CacheLimits& l) {
    return plan_workspace(config, numerics, l, 0).scratch.lists;
  };
  return std::max(lists(limits), lists(decode));
}

DeviceWorkspace plan_device_workspace(const ModelConfig& config, Numerics numerics,
                                      const CacheLimits& limits) {
  const Workspace host = plan_workspace(config, numerics, limits, 0);
  return {.lists = device_list_bytes(config, numerics, limits),
          .activations = host.scratch.activations,
          .logits = host.logits,
          .kernels = experts_bytes(config, limits.max_batch_tokens) + kLibraryBytes};
}

}  // namespace dsv4
