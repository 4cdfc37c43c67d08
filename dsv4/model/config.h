// config.json of a DeepSeek-V4 checkpoint, in the official or the transformers spelling
// (docs/spec/dsv4.md 1; docs/checkpoints.md lists the differences). Every dimension comes from
// here.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/ops/parts/rope/rope.h"

namespace dsv4 {

// How a layer attends to tokens before its window (docs/spec/dsv4.md 2).
enum class LayerKind : uint8_t {
  kSwa,  // not at all
  kCsa,  // through compressed entries; an indexer selects the top k
  kHca   // through all compressed entries
};

// What guesses tokens beside the model (docs/speculation.md): the blocks mtp.* of its checkpoint,
// of the first releases or of later ones.
enum class DrafterKind : uint8_t { kNone, kMtp, kDspark };
const char* name(DrafterKind kind);  // "none", "mtp", "dspark"

// The drafter of the later releases (docs/spec/dsv4.md 9.2).
struct DsparkConfig {
  int64_t block_size = 0;     // B, tokens that it guesses at once; 0: the model has none
  int64_t markov_rank = 0;    // R
  int32_t noise = -1;         // the id that stands for a token that is to be guessed
  std::vector<int64_t> taps;  // layers whose outputs it sees, in ascending order
  bool empty() const { return block_size == 0; }
};

struct ModelConfig {
  int64_t hidden_size = 0;        // D
  int64_t num_layers = 0;         // L
  int64_t vocab_size = 0;         // V
  int64_t num_heads = 0;          // H
  int64_t head_dim = 0;           // d
  int64_t rope_dim = 0;           // rd, the last dims of a head
  int64_t q_lora_rank = 0;        // Q
  int64_t o_groups = 0;           // G
  int64_t o_lora_rank = 0;        // R
  int64_t window = 0;             // W, raw tokens seen by a query, itself included
  int64_t index_heads = 0;        // indexer query heads
  int64_t index_dim = 0;          // indexer head dim
  int64_t index_topk = 0;         // entries a CSA query attends to
  int64_t num_experts = 0;        // E
  int64_t experts_per_token = 0;  // k
  int64_t expert_dim = 0;         // I
  int64_t shared_experts = 0;
  bool normalize_weights = true;  // norm_topk_prob
  float route_scale = 1.f;
  float swiglu_limit = 0.f;  // 0: no clamp
  int64_t hc_mult = 0;       // M
  int sinkhorn_iters = 0;
  float hc_eps = 0.f;
  float norm_eps = 0.f;
  double rope_theta = 0;           // layers without compression, never YaRN
  double compress_rope_theta = 0;  // layers with compression
  YarnParams yarn;                 // of the compressed layers
  int64_t max_positions = 0;
  int64_t mtp_layers = 0;  // drafter blocks in the config
  DsparkConfig dspark;     // of these blocks; empty: they are MTP's (docs/spec/dsv4.md 9.1)
  int32_t bos = -1;        // -1: none
  std::vector<int32_t> eos;

  std::vector<LayerKind> kinds;   // [L]
  std::vector<int> ratios;        // [L] tokens per compressed entry; 0 for SWA
  std::vector<bool> hash_layers;  // [L] routed by tid2eid
  std::vector<std::string>
      unknown;  // keys of the file that are neither read nor known to be harmless
};

// What the blocks mtp.* of the config are; kNone: it has none.
DrafterKind drafter_kind(const ModelConfig& config);
// Layers of a drafter of this kind: the one of MTP, or the stages of DSpark.
int64_t drafter_blocks(const ModelConfig& config, DrafterKind kind);

// Throws kBadInput with the file, the key and the problem.
ModelConfig parse_config(std::string_view json, const std::string& file);
ModelConfig load_config(const std::string& file);

}  // namespace dsv4
