// The runner of a device.
//
//   lists     built in page-locked memory, one copy to the device per step (model/step_lists.h)
//   decode    steps of up to kMaxRunTokens tokens per sequence, all of whose logits are wanted
//             (one token, or one and the drafts to verify), are padded to a few sizes and captured:
//             the first of a size runs kernel by kernel (which also makes every workspace as large
//             as it gets), the second is captured, and all further ones are one graph launch
//   prefill   kernel by kernel; the host enqueues ahead of the device
//   experts   where some are in host memory: steps of prompts stream whole layers
//             (expert_waves.h), all others fetch what they chose, in kernels of the step
//   sample    on the device; the only wait of a step is for the sampled ids
//   ranks     a rank of several: exchanges are kernels of the step (comm/device_ranks.h), or in a
//             benchmark of one rank alone copies (comm/local_copies.h)
//   drafts    passes of the drafter, or what follows from its block, each of which takes the ids
//             that the one before has drawn: one graph and one wait for all drafts of a round, on
//             every rank of several

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "dsv4/comm/device_ranks.h"
#include "dsv4/comm/local_copies.h"
#include "dsv4/comm/metered.h"
#include "dsv4/device/copy_pieces.h"
#include "dsv4/device/cublas_lt.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/event.h"
#include "dsv4/device/graph.h"
#include "dsv4/engine/captured_steps.h"
#include "dsv4/engine/device_sampler.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/expert_waves.h"
#include "dsv4/engine/runner.h"
#include "dsv4/engine/workspace.h"
#include "dsv4/ops/parts/experts_fetch/fetch_beside.h"

namespace dsv4 {
namespace {

// Pieces in page-locked memory, where the kernel that copies reads them.
struct PieceList {
  Buffer memory;
  StreamMark read;

  const CopyPiece* fill(std::span<const CopyPiece> pieces, Memory& pinned) {
    read.wait();
    const auto bytes = static_cast<int64_t>(pieces.size_bytes());
    constexpr int64_t kLeast = 64 << 10;
    if (memory.empty() || memory.view().bytes() < bytes)
      memory = Buffer(DType::kU8, {std::max(bytes, kLeast)}, pinned);
    std::memcpy(memory.view().data, pieces.data(), pieces.size_bytes());
    return reinterpret_cast<const CopyPiece*>(memory.view().data);
  }
};

// Gives its list back: allocating page-locked memory takes longer than most copies.
class DeviceTransfer final : public Transfer {
 public:
  DeviceTransfer(std::unique_ptr<PieceList> list, std::vector<std::unique_ptr<PieceList>>& unused)
      : list_(std::move(list)), unused_(unused) {}
  ~DeviceTransfer() override { unused_.push_back(std::move(list_)); }

  bool done() override { return list_->read.reached(); }
  void wait() override { list_->read.wait(); }

 private:
  std::unique_ptr<PieceList> list_;
  std::vector<std::unique_ptr<PieceList>>& unused_;
};

class DeviceRunner : public Runner {
 public:
  DeviceRunner(const Model& model, const Context& context, const CacheLimits& limits,
               DeviceRanks* ranks, bool alone);
  ~DeviceRunner() override;

  Memory& memory() override { return device_.memory(); }
  const Scratch& scratch() const override { return scratch_; }
  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override;
  Drafted draft(const DraftChain& chain) override;
  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override {
    return sampler_.sample(context_, logits, rows);
  }
  Memory& staging() override { return device_.pinned(); }
  void copy(std::span<const CopyPiece> pieces) override;
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override;
  void wait() override { device_.wait(); }
  void observe(Observer* observer) override { context_.observer = observer; }
  std::vector<RankStats> rank_stats() override;

 private:
  // A decode step, or the drafts of a round, of one size: run once, then captured. The graph's
  // addresses are valid as long as `workspace`, the bytes of all scratch, and `logits` are the same
  // as at capture.
  struct Captured {
    bool run = false;
    std::optional<Graph> graph;
    int64_t workspace = 0;
    const std::byte* logits = nullptr;
    int64_t received_bytes = 0;  // of other ranks, by a launch
  };
  // What the graph of a round's drafts depends on. terms, mask: some row has them
  struct DraftSize {
    int64_t rows = 0;
    size_t guesses = 0;
    bool terms = false, mask = false;
    auto operator<=>(const DraftSize&) const = default;
  };

  // An observer waits for every op, which a capture does not allow.
  bool captures() const { return device_.times() == nullptr && context_.observer == nullptr; }
  std::optional<StepExtents> decode_extents(const ForwardBatch& batch, const StepExtents& exact,
                                            const TensorView& logits) const;
  void choose_experts(Step& step, bool decodes);
  // How a rank of several exchanges values; null: the model is whole.
  Communicator* communicator();
  // A rank of several waits for its turn (DeviceRanks::step).
  void enqueue_in_turn(const std::function<void()>& enqueue);
  // What a chain computes and draws, for so many rows; makes the lists.
  std::function<void()> passes_of(const DraftChain& chain, int64_t rows);
  std::function<void()> block_of(const DraftChain& chain, int64_t rows);
  void run_captured(Captured& captured, const TensorView& logits,
                    const std::function<void()>& enqueue);
  // Lists that are written into list_scratch_, from where it begins, and read from the mirror.
  StepLists step_lists(const std::byte* begin) {
    return {list_scratch_, list_mirror_.view().data - begin};
  }
  void send_step_lists();
  int64_t scratch_bytes() const {
    return scratch_.reserved_bytes() + device_.workspace().reserved_bytes();
  }

  Device& device_;
  const Model& model_;
  DeviceRanks* const ranks_;          // null: the rank is alone
  std::optional<LocalCopies> alone_;  // of a part of a model
  Context context_;
  const CapturedSteps captured_steps_;
  Scratch scratch_;
  Scratch list_scratch_;  // one chunk of page-locked memory
  const Workspace workspace_;
  Buffer list_mirror_;
  Event lists_copied_;
  DeviceSampler sampler_;
  std::map<StepExtents, Captured> captured_;
  std::map<DraftSize, Captured> captured_drafts_;
  PieceList pieces_;                                     // of the last copy()
  std::vector<std::unique_ptr<PieceList>> piece_lists_;  // that no transfer uses now
  CopyStream copy_stream_;
  std::unique_ptr<StoreWaves> waves_;  // null: all experts are on the device
  std::unique_ptr<FetchBeside> beside_;
  DraftHead draft_head_;
  ExchangeCounts exchanges_;
  std::optional<Metered> metered_;  // what ranks_ has for this rank
  RankStats stats_;
};

DeviceRunner::DeviceRunner(const Model& model, const Context& context, const CacheLimits& limits,
                           DeviceRanks* ranks, bool alone)
    : device_(*context.device),
      model_(model),
      ranks_(ranks),
      context_(context),
      captured_steps_(model.cache_groups(), model.config().index_topk, limits),
      scratch_(device_.memory()),
      list_scratch_(device_.pinned()),
      workspace_(plan_workspace(model, context, limits, 0)),
      list_mirror_(DType::kU8, {workspace_.lists}, device_.memory()),
      sampler_(device_, sample_layout(model.config(), limits)),
      copy_stream_(device_) {
  DSV4_CHECK(ranks_ != nullptr || alone || model.id().whole(), "rank {} of {} without the others",
             model.id().rank, model.id().world);
  // A rank without heads takes other kernels for what all ranks compute.
  if (ranks_ != nullptr && !context.need_batch_invariant &&
      model.id().world > model.config().o_groups)
    fail(ErrorCode::kUnsupported,
         "{} ranks for {} groups of heads: give as many GPUs as groups at most, or --deterministic",
         model.id().world, model.config().o_groups);
  if (alone) alone_.emplace(device_, model.id(), workspace_.symmetric);
  if (ranks_ != nullptr) metered_.emplace(ranks_->rank(model.id().rank), exchanges_);
  if (limits.draft_head) draft_head_ = DraftHead(model, device_.memory());
  list_scratch_.reserve(list_mirror_.view().numel());
  scratch_.reserve(workspace_.activations);
  // A step of several ranks allocates and loads nothing: what waits for a GPU would wait for all of
  // them.
  if (ranks_ != nullptr) {
    if (device_.workspace().reserved_bytes() == 0) device_.workspace().reserve(workspace_.kernels);
    lt_prepare(device_);
    ranks_->make_symmetric(model.id().rank, workspace_.symmetric);
  }
  if (ExpertStore* const store = model.expert_store(); store != nullptr) {
    waves_ = make_store_waves(device_, *store);
    beside_ = make_store_fetch(device_, *store);
  }
  stats_.rank = model.id().rank;
  stats_.weight_bytes = model.weight_bytes();
}

std::vector<RankStats> DeviceRunner::rank_stats() {
  RankStats stats = stats_;
  stats.received_bytes = exchanges_.received_bytes;
  if (ranks_ != nullptr) stats.wait_seconds = ranks_->waited(model_.id().rank);
  stats.workspace_bytes = scratch_bytes() + list_mirror_.view().bytes() + workspace_.symmetric[0] +
                          workspace_.symmetric[1];
  stats.device_memory = device_memory(&device_);
  return {stats};
}

DeviceRunner::~DeviceRunner() {
  cudaStreamSynchronize(device_.stream());  // kernels may still use what goes away now
}

Communicator* DeviceRunner::communicator() {
  if (metered_) return &*metered_;
  return alone_ ? &*alone_ : nullptr;
}

// What a decode step is padded to where steps are captured; nothing for other steps.
std::optional<StepExtents> DeviceRunner::decode_extents(const ForwardBatch& batch,
                                                        const StepExtents& exact,
                                                        const TensorView& logits) const {
  int64_t run_tokens = 0;
  for (const SequenceRun& run : batch.runs) run_tokens = std::max(run_tokens, run.count);
  std::optional<StepExtents> extents = captured_steps_.padded(exact, run_tokens);
  if (extents && extents->tokens > logits.dim(0)) return {};
  return extents;
}

void DeviceRunner::send_step_lists() {
  const TensorView written = list_scratch_.taken();
  cuda_check(
      cudaMemcpyAsync(list_mirror_.view().data, written.data, static_cast<size_t>(written.bytes()),
                      cudaMemcpyHostToDevice, device_.stream()),
      "copy of the step's lists");
  lists_copied_.record(device_.stream());
}

void DeviceRunner::forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
                           const TensorView& logits, const DrafterStreams& drafter) {
  const StepTimer timer(stats_);
  lists_copied_.wait();  // the last step's lists have left the memory that this one's go to
  const Scratch::Scope scope(list_scratch_);
  StepExtents exact = step_extents(model_.cache_groups(), batch);
  exact.enters = drafter_of(model_, caches);
  const std::optional<StepExtents> decode = decode_extents(batch, exact, logits);
  const std::optional<StepExtents> captured = captures() ? decode : std::nullopt;
  Step step =
      make_step(context_, model_.config(), model_.cache_groups(), batch, captured.value_or(exact),
                step_lists(list_scratch_.taken().data), scratch_, model_.id());
  send_step_lists();
  choose_experts(step, decode.has_value());
  const auto enqueue = [&] { model_.forward(step, caches, logits, drafter); };
  step.ranks = communicator();
  enqueue_in_turn(
      [&] { captured ? run_captured(captured_[*captured], logits, enqueue) : enqueue(); });
}

void DeviceRunner::enqueue_in_turn(const std::function<void()>& enqueue) {
  ranks_ == nullptr ? enqueue() : ranks_->step(model_.id().rank, enqueue);
}

// A decode step chooses on the device, so its graph is the same for all of them; it does so also
// where it is timed kernel by kernel.
void DeviceRunner::choose_experts(Step& step, bool decodes) {
  if (waves_ == nullptr) return;
  if (decodes || step.num_tokens <= kMostFetchedTokens) {
    // Kernels are timed one by one on one stream.
    if (captures() && step.num_tokens >= kLeastBesideTokens) step.beside = beside_.get();
    return waves_->places_changed();
  }
  waves_->begin_step();
  step.waves = waves_.get();
}

std::function<void()> DeviceRunner::passes_of(const DraftChain& chain, int64_t rows) {
  const std::byte* const lists = list_scratch_.taken().data;
  const StepExtents extents = captured_steps_.draft(rows);
  std::vector<Step> steps;
  for (size_t pass = 0; pass < chain.guesses(); ++pass) {
    steps.push_back(make_draft_step(context_, model_.config(), model_.cache_groups()[kWindowGroup],
                                    chain.passes[pass], extents, step_lists(lists), scratch_));
    steps.back().draft_head = draft_head_.get(), steps.back().ranks = communicator();
    if (pass > 0) steps.back().ids = sampler_.drafts(pass - 1, rows);
  }
  return [this, &chain, rows, steps = std::move(steps)]() mutable {
    for (size_t pass = 0; pass < steps.size(); ++pass) {
      model_.draft(steps[pass], chain.caches[0], chain.before(pass), chain.after(pass, rows),
                   chain.logits(pass, rows));
      sampler_.draw(context_, chain, pass, rows);
    }
  };
}

std::function<void()> DeviceRunner::block_of(const DraftChain& chain, int64_t rows) {
  const int64_t guesses = std::ssize(chain.sequences);
  Step step = make_block_step(context_, model_.config(), model_.cache_groups()[kWindowGroup],
                              chain.passes[0], block_extents(model_.config(), rows, guesses),
                              step_lists(list_scratch_.taken().data), scratch_, model_.id());
  step.draft_head = draft_head_.get(), step.ranks = communicator();
  return [this, &chain, rows, guesses, step]() mutable {
    model_.draft_block(step, chain.caches, chain.block_rows(rows));
    for (size_t guess = 0; guess < chain.guesses(); ++guess) {
      const ConstTensorView before =
          guess == 0 ? step.drafter.newest : ConstTensorView(sampler_.drafts(guess - 1, rows));
      model_.guess_after(step, before, chain.block_rows(guess, rows));
      sampler_.draw(context_, chain, guess, rows);
    }
    model_.confidences(step, chain.block_rows(rows), sampler_.confidences(rows * guesses));
  };
}

Drafted DeviceRunner::draft(const DraftChain& chain) {
  const StepTimer timer(stats_, 0);
  lists_copied_.wait();
  const Scratch::Scope scope(list_scratch_);
  const int64_t rows = captured_steps_.draft(std::ssize(chain.passes[0].runs)).runs;
  const std::function<void()> enqueue =
      chain.block() ? block_of(chain, rows) : passes_of(chain, rows);
  send_step_lists();
  sampler_.send(chain, rows);
  const DraftSize size{rows, chain.guesses(), !chain.sampling.term_begin.empty(),
                       !chain.sampling.mask.empty()};
  enqueue_in_turn([&] {
    captures() ? run_captured(captured_drafts_[size], chain.buffers.logits, enqueue) : enqueue();
  });
  return sampler_.take(chain, rows);
}

void DeviceRunner::run_captured(Captured& captured, const TensorView& logits,
                                const std::function<void()>& enqueue) {
  if (!std::exchange(captured.run, true)) return enqueue();
  const int64_t received = exchanges_.received_bytes;
  bool recorded = true;
  if (!captured.graph) {
    captured.graph = Graph::capture(device_, enqueue);
  } else if (captured.workspace != scratch_bytes() || captured.logits != logits.data) {
    captured.graph->update(device_, enqueue);
  } else {
    exchanges_.received_bytes += captured.received_bytes;
    recorded = false;
  }
  // A graph cannot be made on a GPU where that of another rank runs and waits.
  if (recorded && ranks_ != nullptr) ranks_->pass_turn(model_.id().rank);
  captured.received_bytes = exchanges_.received_bytes - received;
  captured.workspace = scratch_bytes();
  captured.logits = logits.data;
  captured.graph->launch(device_);
}

void DeviceRunner::copy(std::span<const CopyPiece> pieces) {
  if (pieces.empty()) return;
  copy_pieces(device_, pieces_.fill(pieces, device_.pinned()), static_cast<int64_t>(pieces.size()));
  pieces_.read.record(device_.stream());
}

std::unique_ptr<Transfer> DeviceRunner::start_copy(std::span<const CopyPiece> pieces) {
  std::unique_ptr<PieceList> list;
  if (piece_lists_.empty()) {
    list = std::make_unique<PieceList>();
  } else {
    list = std::move(piece_lists_.back());
    piece_lists_.pop_back();
  }
  copy_stream_.copy(list->fill(pieces, device_.pinned()), static_cast<int64_t>(pieces.size()),
                    list->read);
  return std::make_unique<DeviceTransfer>(std::move(list), piece_lists_);
}

}  // namespace

std::unique_ptr<Runner> make_device_runner(const Model& model, const Context& context,
                                           const CacheLimits& limits, DeviceRanks* ranks,
                                           bool alone) {
  return std::make_unique<DeviceRunner>(model, context, limits, ranks, alone);
}

}  // namespace dsv4
