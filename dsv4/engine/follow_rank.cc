// The loop of a rank that is a process, other than rank 0 (rank_messages.h).

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/comm/rank_team.h"
#include "dsv4/engine/process_rank.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/engine/rank_mirror.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

class Follower {
 public:
  Follower(Model& model, const FollowedWork& work, const RankOptions& options)
      : model_(model), work_(work), group_(*model.processes()), options_(options) {}

  void handle(const RankProcesses::Message& message) {
    MessageReader from(message.bytes);
    const auto kind = static_cast<RankMessage>(message.kind);
    if (kind == RankMessage::kPlace) return place(from);
    if (kind == RankMessage::kRunner) return make_runner(from);
    DSV4_CHECK(rank_.has_value(), "message {} before a runner", message.kind);
    switch (kind) {
      case RankMessage::kAllocate: {
        const auto* address = from.get<const std::byte*>();
        return blocks_->allocate(address, from.get<int64_t>());
      }
      case RankMessage::kRelease:
        return blocks_->release(from.get<const std::byte*>());
      case RankMessage::kUpload:
        return upload(from);
      case RankMessage::kCaches:
        return take_caches(from);
      case RankMessage::kStep:
        return step(from);
      case RankMessage::kDraft:
        return draft(from);
      case RankMessage::kCopy:
        return copy(from, message.bytes.size());
      case RankMessage::kFill:
        return fill(from);
      case RankMessage::kStats:
        return group_.reply(kind_of(RankMessage::kDone),
                            MessageWriter().put(runner().rank_stats().front()).bytes());
      default:
        fail(ErrorCode::kBadInput, "rank 0 sent message {}", message.kind);
    }
  }

  // Rank 0 has come to its end.
  void end() { end_runner(); }
  // While no message comes: an exchange of this rank's GPU may have waited in vain.
  void check() {
    if (rank_) rank_->check_exchanges();
  }

 private:
  Runner& runner() { return rank_->runner(); }

  void place(MessageReader& from) {
    const auto cache_bytes = from.get<int64_t>();
    const std::unique_ptr<ContextText> steps = get_context(from);
    from.end();
    DSV4_CHECK(work_.place != nullptr, "rank {} has no GPU for its weights", group_.id().rank);
    work_.place(model_, cache_bytes, steps->context);
  }

  void make_runner(MessageReader& from) {
    end_runner();
    const auto limits = from.get<CacheLimits>();
    const std::chrono::milliseconds limit(from.get<int64_t>());
    context_ = get_context(from);
    from.end();
    context_->context.device = model_.device();
    if (model_.device() != nullptr) group_.stay_awake(awake_on_gpus(group_.id().world));
    rank_.emplace(model_, context_->context, limits, limit);
    blocks_.emplace(runner().memory());
  }

  void end_runner() {
    caches_.clear();
    copied_ = Buffer();
    blocks_.reset();
    rank_.reset();
  }

  void upload(MessageReader& from) {
    const auto* address = from.get<const std::byte*>();
    const auto bytes = from.get<int64_t>();
    std::byte* const to = blocks_->at(address, bytes);
    blocks_->memory().upload(to, from.raw(static_cast<size_t>(bytes)), bytes);
  }

  void take_caches(MessageReader& from) {
    caches_ = get_caches(from);
    for (LayerCache& layer : caches_)
      move_cache(layer,
                 [&](TensorView& view) { view.data = blocks_->at(view.data, view.bytes()); });
  }

  void fill(MessageReader& from) {
    const auto seed = from.get<uint64_t>();
    take_caches(from);
    DSV4_CHECK(work_.fill != nullptr, "rank {} cannot fill its caches", group_.id().rank);
    runner().wait();
    work_.fill(model_, caches_, seed);
  }

  void step(MessageReader& from) {
    rank_->check_exchanges();  // after one that ended without its values nothing is computed
    StepForm form;
    const std::unique_ptr<StepPlan> plan = get_plan(from, form);
    if (options_.before_step) options_.before_step(group_.id(), plan->step());
    runner().observe(form.eager ? &run_calls_ : nullptr);
    // The logits are rank 0's: no memory, but a shape.
    const TensorMeta logits =
        TensorMeta::contiguous(DType::kF32, {form.logits_rows, model_.config().vocab_size});
    DrafterStreams drafter = form.drafter;
    if (!drafter.streams.empty()) {
      TensorView& streams = drafter.streams;
      streams.data = blocks_->at(streams.data, streams.bytes());
      drafter.pending.data = blocks_->at(drafter.pending.data, drafter.pending.bytes());
    }
    rank_->run([&](Runner& runner) {
      runner.forward(plan->batch(), caches_, {logits, unmapped_address(0)}, drafter);
    });
  }

  void draft(MessageReader& from) {
    bool eager = false;
    const auto at = [&](const std::byte* address, int64_t bytes) {
      return blocks_->at(address, bytes);
    };
    const std::unique_ptr<DraftPlan> plan = get_draft(from, at, eager);
    if (options_.before_draft) options_.before_draft(group_.id());
    runner().observe(eager ? &run_calls_ : nullptr);
    rank_->run([&](Runner& runner) { runner.draft(plan->chain()); });
    rank_->check_exchanges();
  }

  void copy(MessageReader& from, size_t left) {
    std::vector<CopyPiece> pieces;
    constexpr size_t kHead = 2 * sizeof(void*) + sizeof(int64_t);
    while (left > 0) {
      const auto* to = from.get<const std::byte*>();
      const auto bytes = from.get<int64_t>();
      const auto* source = from.get<const std::byte*>();
      std::byte* const own = blocks_->at(to, bytes);
      const bool inside = source != nullptr;
      pieces.push_back(
          {own, inside ? blocks_->at(source, bytes) : from.raw(static_cast<size_t>(bytes)), bytes});
      left -= kHead + (inside ? 0 : static_cast<size_t>(bytes));
    }
    const bool staged = stage(pieces);
    runner().copy(pieces);
    if (staged) runner().wait();  // copied_ is written again
  }

  // Copies of bytes of the message come from memory that the runner reads. False: there are none.
  bool stage(std::vector<CopyPiece>& pieces) {
    const auto in_message = [&](const CopyPiece& piece) { return !blocks_->holds(piece.from); };
    int64_t total = 0;
    for (const CopyPiece& piece : pieces)
      total += in_message(piece) ? align_up(piece.bytes, kStagedAlign) : 0;
    if (total == 0) return false;
    if (copied_.empty() || copied_.view().bytes() < total)
      copied_ = Buffer(DType::kU8, {std::max(total, kLeastStaged)}, runner().staging());
    std::byte* to = copied_.view().data;
    for (CopyPiece& piece : pieces) {
      if (!in_message(piece)) continue;
      std::memcpy(to, piece.from, static_cast<size_t>(piece.bytes));
      piece.from = std::exchange(to, to + align_up(piece.bytes, kStagedAlign));
    }
    return true;
  }

  static constexpr int64_t kLeastStaged = int64_t{1} << 20, kStagedAlign = 16;  // bytes

  Model& model_;
  const FollowedWork& work_;
  RankProcesses& group_;
  const RankOptions options_;
  RunCalls run_calls_;
  std::unique_ptr<ContextText> context_;
  std::optional<ProcessRank> rank_;
  std::optional<BlocksOfRank> blocks_;
  std::vector<LayerCache> caches_;
  Buffer copied_;  // page-locked: what the last message of copies brought
};

}  // namespace

void follow_rank_0(Model& model, const FollowedWork& work, const RankOptions& options) {
  RankProcesses& group = *model.processes();
  Follower follower(model, work, options);
  try {
    while (const auto message = group.next([&] { follower.check(); })) follower.handle(*message);
    follower.end();
    group.leave();
  } catch (const std::exception&) {
    group.stop_all();
  }
}

}  // namespace dsv4
