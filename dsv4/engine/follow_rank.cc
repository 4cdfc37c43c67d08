// The loop of a rank that is a process, other than rank 0 (rank_messages.h).

#include <omp.h>

#include <algorithm>
#include <optional>

#include "dsv4/base/error.h"
#include "dsv4/comm/threads.h"
#include "dsv4/engine/host_runner.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/engine/rank_mirror.h"

namespace dsv4 {
namespace {

class Follower {
 public:
  Follower(const Model& model, const RankOptions& options)
      : model_(model), group_(*model.processes()), options_(options) {}

  void handle(const RankProcesses::Message& message) {
    MessageReader from(message.bytes);
    const auto kind = static_cast<RankMessage>(message.kind);
    if (kind == RankMessage::kRunner) return make_runner(from);
    DSV4_CHECK(runner_.has_value(), "message {} before a runner", message.kind);
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
      case RankMessage::kCopy:
        return copy(from, message.bytes.size());
      case RankMessage::kStats:
        return group_.reply(kind_of(RankMessage::kDone),
                            MessageWriter().put(runner_->rank_stats().front()).bytes());
      default:
        fail(ErrorCode::kBadInput, "rank 0 sent message {}", message.kind);
    }
  }

 private:
  void make_runner(MessageReader& from) {
    caches_.clear();
    blocks_.reset();
    runner_.reset();
    const auto limits = from.get<CacheLimits>();
    group_.set_limit(std::chrono::milliseconds(from.get<int64_t>()));
    context_ = get_context(from);
    from.end();
    runner_.emplace(model_, context_->context, limits);
    runner_->join(&group_.exchanges());
    blocks_.emplace(runner_->memory());
  }

  void upload(MessageReader& from) {
    const auto* address = from.get<const std::byte*>();
    const auto bytes = from.get<int64_t>();
    std::byte* const to = blocks_->at(address, bytes);
    blocks_->memory().upload(to, from.raw(static_cast<size_t>(bytes)), bytes);
  }

  void take_caches(MessageReader& from) {
    caches_ = get_caches(from);
    const auto move = [&](TensorView& view) {
      if (!view.empty()) view.data = blocks_->at(view.data, view.bytes());
    };
    for (LayerCache& layer : caches_) {
      move(layer.window.pages);
      move(layer.entries.pages);
      move(layer.keys.pages);
      move(layer.state.slots);
      move(layer.index_state.slots);
    }
  }

  void step(MessageReader& from) {
    const std::unique_ptr<StepPlan> plan = get_plan(from);
    if (options_.before_step) options_.before_step(group_.id(), plan->step());
    // The logits are rank 0's: no memory, but a shape.
    const TensorMeta logits = TensorMeta::contiguous(
        DType::kF32, {std::ssize(plan->batch().logits_rows), model_.config().vocab_size});
    runner_->forward(plan->batch(), caches_, {logits, unmapped_address(0)}, {});
    group_.reply(kind_of(RankMessage::kDone), {});
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
    runner_->copy(pieces);
  }

  const Model& model_;
  RankProcesses& group_;
  const RankOptions options_;
  std::unique_ptr<ContextText> context_;
  std::optional<HostRunner> runner_;
  std::optional<BlocksOfRank> blocks_;
  std::vector<LayerCache> caches_;
};

}  // namespace

void follow_rank_0(const Model& model, const RankOptions& options) {
  RankProcesses& group = *model.processes();
  omp_set_num_threads(std::max(1, omp_get_max_threads() / model.id().world));
  Follower follower(model, options);
  try {
    while (const auto message = group.next()) follower.handle(*message);
  } catch (const RanksStopped&) {
    throw;
  } catch (const Error& error) {
    const std::string line = fmt::format("rank {}: {}", group.id().rank, error.what());
    group.abort(line);
    throw Error(error.code(), line);
  }
}

}  // namespace dsv4
