// What every block of the network shares during one forward step: the batch as tensors, the lists
// of cache rows that depend on positions only (so every layer uses the same), scratch memory and
// mode.

#pragma once

#include <compare>
#include <span>
#include <vector>

#include "dsv4/comm/communicator.h"
#include "dsv4/formats/weight.h"
#include "dsv4/model/batch.h"
#include "dsv4/model/schedule.h"
#include "dsv4/model/step_lists.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {

// Sizes of the lists. A step may be larger than its batch: the excess is filled so that ops skip it
// (rows -1, nothing visible, empty runs). Steps of equal extents differ in contents only, so one
// captured graph serves them all.
struct StepExtents {
  struct Group {
    int64_t closed = 0;   // entries that close
    int64_t visible = 0;  // entries that a query sees, at most
    int64_t pages = 1;    // of a sequence's table
    auto operator<=>(const Group&) const = default;
  };
  int64_t tokens = 0, runs = 0, logits_rows = 0;
  DrafterKind enters = DrafterKind::kNone;  // whose rows of the tokens are entered
  std::vector<Group> groups;                // [cache group]
  auto operator<=>(const StepExtents&) const = default;
};

// Entries of one cache group, as this batch closes and sees them (docs/spec/dsv4.md 4.3: a query at
// t sees entry w iff w < floor((t + 1) / r)). A key of the window is an entry that closes with its
// token; of that group there are closed_rows and all_rows only, and a query sees the last W.
struct EntryLists {
  int ratio = 0;
  ConstTensorView closed_rows;       // [n] I32 cache rows of the entries that close in this step
  ConstTensorView closed_positions;  // [n] I32 w * r, where RoPE places an entry
  ConstTensorView visible;           // [T] I32
  ConstTensorView settled;           // [T] I32: entries that earlier steps closed
  ConstTensorView pages;             // [runs, max_pages] I32
  // [T, max_visible] I32 rows of all visible entries, oldest first, -1 padded; empty where the
  // indexer chooses
  ConstTensorView all_rows;
  int64_t max_visible = 0;
};

// What the drafter's rows of a step need: MTP's (mtp.h), or those of blocks of DSpark (dspark.h).
struct DrafterLists {
  // [T] I32: the row of the token before, among the streams of the step's tokens and then those of
  // the runs' newest earlier tokens; in a draft, among those that are given
  ConstTensorView before;
  ConstTensorView positions;  // [T] I32: of the token before; a draft has Step::positions instead
  ConstTensorView rows;       // [T] I32 cache rows; -1 at position 0; a draft has window() instead
  ConstTensorView ones;       // [T, m] f32; of blocks [runs, 1]
  ConstTensorView identity;   // [T, m, m] f32
  ConstTensorView newest;     // [runs] I32: the token that each block begins with
};

// What the ids of a step are to one of several ranks, which owns some rows of the embedding table.
struct RankLists {
  ConstTensorView owners;    // [T] I32: the rank that owns the id's row
  ConstTensorView rows;      // [T] I32: the row in the part of this rank; 0 where another owns it
  ConstTensorView in_order;  // [T] I32: 0, 1, ..
};

struct ExpertImages;  // ops/parts/experts/expert_stack.h
class FetchBeside;    // ops/parts/experts_fetch/fetch_beside.h

// The experts of a model that has some of them in host memory, streamed past a step of many tokens
// instead of fetched by it: which ones are chosen does not matter, nearly all are.
class ExpertWaves {
 public:
  virtual ~ExpertWaves() = default;
  // Sets the places and the turns of the layer's experts, for what is enqueued next, up to
  // end_layer(). Layers come in order.
  virtual void begin_layer(int64_t layer, ExpertImages& images) = 0;
  virtual void end_layer(int64_t layer) = 0;
};

// How the ranks that compute the columns of a block's output y bring them to the others.
enum class Outputs : uint8_t {
  kGathered,    // by an exchange at the end of the block
  kStay,        // not at all: the next boundary reads them where they are (hyper_streams.h)
  kByBoundary,  // the next boundary exchanges them as it reads them
};

struct Step {
  const Context& context;
  const ModelConfig& config;
  Scratch& scratch;
  DType act;  // activations: BF16 under official numerics, F32 under exact

  int64_t num_tokens = 0;                   // T
  ConstTensorView ids;                      // [T] I32
  ConstTensorView positions;                // [T] I32
  ConstTensorView sequence;                 // [T] I32: index of the token's run
  ConstTensorView cu_tokens;                // [runs + 1] I32
  ConstTensorView start;                    // [runs] I32: position of each run's first token
  ConstTensorView state_slots;              // [runs] I32
  ConstTensorView logits_rows;              // [n] I32: tokens whose logits are wanted
  std::vector<EntryLists> groups;           // [cache group]
  DrafterKind enters = DrafterKind::kNone;  // whose rows of the tokens are entered
  DrafterLists drafter;                     // empty where the step has no use for them
  // A copy of the head for guesses, of fewer bits; null: there is none.
  const WeightView* draft_head = nullptr;
  // How a rank of several exchanges values with the others (ranks.h). Null: it is alone.
  Communicator* ranks = nullptr;
  RankLists own;  // with ranks
  // Where the tokens of each rank end [world], in a step of which every rank selects entries for
  // some of the tokens (ranks.h); empty: each does so for all of them.
  ColumnEnds token_ends;
  Outputs outputs = Outputs::kGathered;  // with ranks
  // That is computed at present, for errors of exchanges and for waves; those of a drafter follow.
  int64_t layer = -1;
  // Null: the step brings the experts that it chose itself, where the model's are fetched.
  ExpertWaves* waves = nullptr;
  // Not null: it brings them beside the products of the others.
  FetchBeside* beside = nullptr;

  const EntryLists& window() const { return groups[kWindowGroup]; }
  bool official() const { return context.numerics == Numerics::kOfficial; }
  TensorView activation(std::initializer_list<int64_t> shape) { return scratch.take(act, shape); }
};

// What the batch needs and no more. groups: cache_groups() of the model
StepExtents step_extents(std::span<const CacheGroupSpec> groups, const ForwardBatch& batch);

// Lists live as long as the caller's scope on their scratch. `extents` are step_extents() or
// larger. id: of the rank whose lists they are
Step make_step(const Context& context, const ModelConfig& config,
               std::span<const CacheGroupSpec> groups, const ForwardBatch& batch,
               const StepExtents& extents, StepLists lists, Scratch& scratch, ShardId id = {});

// A step of the drafter: tokens that guess, one of each sequence, at batch.before of the streams
// that are given. Its lists are those of the drafter's rows, of the window group alone.
Step make_draft_step(const Context& context, const ModelConfig& config,
                     const CacheGroupSpec& window, const ForwardBatch& batch,
                     const StepExtents& extents, StepLists lists, Scratch& scratch);

// A step of DSpark: a block of each sequence, whose first token is the newest one, at its position.
// Logits are those of the first guess of every block, then of the second, and so on.
// extents: block_extents() of as many runs, or more
Step make_block_step(const Context& context, const ModelConfig& config,
                     const CacheGroupSpec& window, const ForwardBatch& batch,
                     const StepExtents& extents, StepLists lists, Scratch& scratch,
                     ShardId id = {});
// guesses: of each block, from the first, at most the config's block size
StepExtents block_extents(const ModelConfig& config, int64_t runs, int64_t guesses);

}  // namespace dsv4
