// Every weight of the model, described once (docs/spec/dsv4.md 10.2): the field that holds it, its
// official name, its shape, how official checkpoints store it, the part of the model that it
// belongs to, and how several GPUs share it. The order is that of reads in a forward step.
//
// Loading (weights.h), the tensors of an official checkpoint (tensor_list.h), the walk over the
// tensors of a placed model, and the names that recipes, plans and ledgers use
// (convert/weight_name) are visitors of this description. A new weight is one line in
// weight_table.cc.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "dsv4/formats/weight.h"
#include "dsv4/model/config.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

enum class WeightPart : uint8_t {
  kExperts,        // routed: w1 (gate), w3 (up), w2 (down)
  kSharedExperts,  // w1, w3, w2
  kAttention,      // wq_a, wq_b, wkv, wo_a, wo_b; also the sink
  kIndexer,        // wq_b, weights_proj
  kCompressor,     // wkv, wgate, also those of the indexer's compressor; ape, norm
  kRouter,         // the gate; also bias and tid2eid
  // e_proj, h_proj, main_proj of mtp blocks; their experts count as experts
  kDrafter,
  kHead,
  kEmbed,
  kOther,
  kHyper,  // hyper-connections
  kNorms,
};

// The name in recipes and plans: "attn", "gate".
const char* name(WeightPart part);

// How the released instruct checkpoints store a weight: FP8 with one E8M0 scale per 128 x 128,
// MXFP4 with one E8M0 scale per 32 columns, or plain.
enum class Stored : uint8_t { kFp8, kMxfp4, kBF16, kF32, kI64 };

// How the ranks of several GPUs share a tensor (docs/spec/several-gpus.md 2.2): by rows, in units
// of `unit` rows, or whole on every rank (0).
struct Cut {
  int64_t unit = 0;
  // With ExpertsPlacement::kWhole: as above, or whole on the rank that has the expert, or whole on
  // every rank.
  enum class IfWhole : uint8_t { kSame, kOfOwner, kEverywhere } if_whole = IfWhole::kSame;
};
// Multiples of an FP8 scale block, which keep the resulting activation columns in whole Q8 groups.
inline constexpr Cut kByBlock{kFp8BlockSize};

struct WeightSpec {
  std::string name;  // official, without ".weight"
  WeightPart part = WeightPart::kOther;
  std::string_view leaf{};  // static text; empty where the part has one matrix
  Stored stored = Stored::kBF16;
  Cut cut{};
  int64_t expert = -1;  // of a routed one
};

// Called for every weight of the config.
class WeightVisitor {
 public:
  virtual ~WeightVisitor() = default;
  // A matrix [n, k] that ops read in whatever format it is stored.
  virtual void matrix(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k) = 0;
  // As matrix(), for wo_a, whose rows form `groups` groups that scale blocks must not straddle.
  virtual void grouped(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k,
                       int64_t groups) = 0;
  // A tensor whose name ends in ".weight", which ops read in any float dtype (embed, norms).
  virtual void floats(ConstTensorView& view, const WeightSpec& spec,
                      std::initializer_list<int64_t> shape) = 0;
  // A tensor that ops read in f32.
  virtual void f32(ConstTensorView& view, const WeightSpec& spec,
                   std::initializer_list<int64_t> shape) = 0;
  // Ids [vocab, k] of experts, I64 or I32.
  virtual void expert_ids(ConstTensorView& view, const WeightSpec& spec,
                          std::initializer_list<int64_t> shape) = 0;
};

// Resizes the layers and experts of `weights` to those of the config. A drafter that is present
// comes before the head's weights, in the order of a round's reads.
void visit_weights(const ModelConfig& config, ModelWeights& weights, WeightVisitor& visitor);

// The stored name of each tensor of a loaded model, by the address of its data: "head.weight".
// Experts that are kernel images have none.
std::map<const std::byte*, std::string> names_by_address(const ModelConfig& config,
                                                         const ModelWeights& weights);

// The weights of the blocks mtp.* of weights.kind.
void visit_drafter(const ModelConfig& config, DrafterWeights& weights, WeightVisitor& visitor);

}  // namespace dsv4
