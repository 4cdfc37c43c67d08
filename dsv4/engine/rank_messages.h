// What rank 0 sends to ranks that are processes (comm/rank_processes.h), and how it is written.
//
//   kPlace      bring the weights to this rank's GPU
//   kRunner     make a runner, with these limits; blocks of the one before are gone
//   kAllocate, kRelease, kUpload      a block of the caches, named by its address on rank 0
//   kCaches     the caches of all layers, as views of such blocks
//   kStep       run a step
//   kDraft      draw the drafts of a round
//   kCopy       copy inside blocks, or into them
//   kFill       make something up for the caches (benchmarks), or look at them (tests)
//   kStats      answered with the rank's numbers

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/comm/rank_processes.h"
#include "dsv4/engine/cache_plan.h"
#include "dsv4/engine/runner.h"
#include "dsv4/engine/step_plan.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

enum class RankMessage : uint32_t {
  kPlace = RankProcesses::kFirstKind,
  kRunner,
  kAllocate,
  kRelease,
  kUpload,
  kCaches,
  kStep,
  kDraft,
  kCopy,
  kFill,
  kStats,
  kDone
};
inline uint32_t kind_of(RankMessage message) {
  return static_cast<uint32_t>(message);
}

// A context without what belongs to a process: its device, observer and scratch.
struct ContextText {
  Context context;                                           // choices point to names
  std::vector<std::pair<std::string, std::string>> names{};  // [choice]: op, implementation
  std::vector<ImplChoice> choices{};
};
void put_context(MessageWriter& to, const Context& context);
// Throws kBadInput for an implementation that this program does not have.
std::unique_ptr<ContextText> get_context(MessageReader& from);

// How all ranks run a step: equal on all of them.
struct StepForm {
  bool eager = false;       // no graph is captured or replayed
  int64_t logits_rows = 0;  // of the memory for logits
  DrafterStreams drafter;   // of MTP, at the addresses of rank 0
};
void put_plan(MessageWriter& to, const StepPlan& plan, StepForm form);
std::unique_ptr<StepPlan> get_plan(MessageReader& from, StepForm& form);

void put_draft(MessageWriter& to, const DraftChain& chain, bool eager);
// at(address, bytes): where bytes of rank 0 lie here. Throws kBadInput where lists do not fit
// together.
using AddressHere = std::function<std::byte*(const std::byte* address, int64_t bytes)>;
std::unique_ptr<DraftPlan> get_draft(MessageReader& from, const AddressHere& at, bool& eager);

void put_caches(MessageWriter& to, std::span<const LayerCache> caches);
std::vector<LayerCache> get_caches(MessageReader& from);  // at the addresses of rank 0

// Rank 0: lets the other ranks, if they are processes, bring their weights to their GPUs while the
// caller does. As move_to_device().
void place_others(const Model& model, int64_t cache_bytes, const Context& steps);

// Rank 0: lets them fill their caches with what FollowedWork::fill makes of the seed.
void fill_others(const Model& model, std::span<const LayerCache> caches, uint64_t seed);

// What a rank does for whoever knows how.
struct FollowedWork {
  // Brings the weights to its GPU.
  std::function<void(Model& model, int64_t cache_bytes, const Context& steps)> place;
  std::function<void(const Model& model, std::span<const LayerCache> caches, uint64_t seed)> fill;
};

// What a rank that is a process of its own does, other than rank 0: it runs the steps that rank 0
// sends (processes_runner.cc), until rank 0 has come to its end. Throws what ended the group, when
// rank 0 or this rank failed. options: for tests
void follow_rank_0(Model& model, const FollowedWork& work = {}, const RankOptions& options = {});

}  // namespace dsv4
