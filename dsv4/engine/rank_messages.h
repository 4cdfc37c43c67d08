// What rank 0 sends to ranks that are processes (comm/rank_processes.h), and how it is written.
//
//   kRunner     make a runner, with these limits; blocks of the one before are gone
//   kAllocate, kRelease, kUpload      a block of the caches, named by its address on rank 0
//   kCaches     the caches of all layers, as views of such blocks
//   kStep       run a step; answered when it has ended
//   kCopy       copy inside blocks, or into them
//   kStats      answered with the rank's numbers

#pragma once

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
  kRunner = RankProcesses::kFirstKind,
  kAllocate,
  kRelease,
  kUpload,
  kCaches,
  kStep,
  kCopy,
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

void put_plan(MessageWriter& to, const StepPlan& plan);
std::unique_ptr<StepPlan> get_plan(MessageReader& from);

void put_caches(MessageWriter& to, std::span<const LayerCache> caches);
std::vector<LayerCache> get_caches(MessageReader& from);  // at the addresses of rank 0

// What a rank that is a process of its own does, other than rank 0: it runs the steps that rank 0
// sends (processes_runner.cc), until rank 0 has come to its end. Throws what ended the group, when
// rank 0 or this rank failed. options: before_step alone
void follow_rank_0(const Model& model, const RankOptions& options = {});

}  // namespace dsv4
