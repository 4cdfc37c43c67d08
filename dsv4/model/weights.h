// The tensors of a model as structs of views, under the official names (docs/spec/dsv4.md 10.2).
// The bytes stay in the checkpoint's mapping; only small vectors not stored as f32 are widened.

#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/formats/weight.h"
#include "dsv4/loader/checkpoint.h"
#include "dsv4/model/model_spec.h"
#include "dsv4/ops/model/attention_in/attention_in.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

struct AttentionWeights : AttentionInWeights {
  WeightView wo_a, wo_b;  // [G*R, H*d/G], [D, G*R]
  ConstTensorView sink;   // [H] f32
};

struct MoeWeights {
  WeightView gate;                    // [E, D]
  ConstTensorView bias;               // [E] f32, learned routing
  ConstTensorView tid2eid;            // [V, k] I64|I32, hash routing
  std::vector<ExpertWeights> routed;  // [E]
  // Where ranks have whole experts: those of this rank. The others of `routed` have shapes only.
  std::optional<ShardId::Rows> own;
  // Instead of those of `routed`, which then have shapes only (ModelShard::choose_layouts).
  ExpertImages images;
  // Where images.places is given: what brings the experts that a step chose there. The step adds
  // its choices.
  ExpertsFetchArgs fetch;
  std::vector<ExpertWeights> shared;  // one entry of width shared_experts * I

  std::span<const ExpertWeights> own_experts() const {
    const std::span<const ExpertWeights> all = routed;
    if (!own) return all;
    return all.subspan(static_cast<size_t>(own->begin), static_cast<size_t>(own->count()));
  }
  ExpertStack stack() const {
    const ExpertStack stack = images.empty() ? ExpertStack(own_experts()) : ExpertStack(images);
    return own ? stack.part_of(std::ssize(routed), own->begin) : stack;
  }
};

struct LayerWeights {
  HyperWeights hc_attn, hc_ffn;
  ConstTensorView attn_norm, ffn_norm;  // [D]
  AttentionWeights attn;
  MoeWeights moe;
};

// The blocks mtp.* (docs/spec/dsv4.md 9.1, 9.2): SWA layers, what they take of the model, and how
// guesses follow from the last one. Embedding table and head matrix are the model's.
struct DrafterWeights {
  DrafterKind kind = DrafterKind::kMtp;
  std::vector<LayerWeights> layers;  // one; of DSpark its stages
  // MTP: of a token and of the streams before it
  WeightView e_proj, h_proj;     // [D, D]
  ConstTensorView enorm, hnorm;  // [D]
  // DSpark: of the layers that it sees, and what follows from the token before a guess
  WeightView main_proj;        // [D, taps D]
  ConstTensorView main_norm;   // [D]
  ConstTensorView markov_w1;   // [V, R]
  WeightView markov_w2;        // [V, R]
  ConstTensorView confidence;  // [1, D + R]
  ConstTensorView norm;        // [D]
  HyperWeights hc_head;
};

struct ModelWeights {
  ConstTensorView embed;  // [V, D]
  WeightView head;        // [V, D]
  ConstTensorView norm;   // [D]
  HyperWeights hc_head;
  std::vector<LayerWeights> layers;
  std::optional<DrafterWeights> drafter;  // where it was wanted
  std::vector<std::string> skipped;       // drafter tensors (mtp.*), recognized but not loaded
  std::vector<std::string> unused;        // tensors that no weight of the model uses
  std::deque<Buffer> widened;  // memory of RoPE tables, views widened to f32, tables of scale2
};

// The routed experts of a layer that change to kernel images: their matrices as stored, and the
// images, whose bytes have shapes and distinct addresses that nothing may be read from.
struct PackedExperts {
  std::vector<ExpertWeights> stored;
  ExpertImages images;
};
// Changes the experts whose best layout (ops/parts/experts/experts.h) are images.
std::vector<PackedExperts> choose_layouts(const Context& context, ModelWeights& weights);
// The images of all layers that have them, the drafter's included.
void for_each_images(ModelWeights& weights, const std::function<void(ExpertImages&)>& visit);

// Visits every tensor that is present, in the order in which a forward step reads them; of images
// with places only their factors.
void for_each_tensor(const ModelConfig& config, ModelWeights& weights,
                     const std::function<void(ConstTensorView&)>& visit);

// Why the checkpoint has no drafter of this kind that can be loaded, in a sentence; empty: it has
// one.
std::string no_drafter(const Checkpoint& checkpoint, const ModelConfig& config, DrafterKind kind);

// What the rank owns of every weight; those of the drafter where it is wanted. Throws kBadInput
// naming a tensor that is missing or whose shape does not match the config.
ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, ShardId id = {},
                          DrafterKind wanted = DrafterKind::kNone,
                          ExpertsPlacement placement = ExpertsPlacement::kSliced);

}  // namespace dsv4
