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

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/not_finite.h"
#include "dsv4/device/copy_pieces.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/event.h"
#include "dsv4/device/graph.h"
#include "dsv4/engine/captured_steps.h"
#include "dsv4/engine/expert_waves.h"
#include "dsv4/engine/runner.h"
#include "dsv4/engine/workspace.h"

namespace dsv4 {
namespace {

// Page-locked memory and its mirror on the device, of equal size.
struct Mirrored {
  Buffer host, device;

  Mirrored(Device& where, int64_t bytes)
      : host(DType::kU8, {bytes}, where.pinned()), device(DType::kU8, {bytes}, where.memory()) {}

  void copy_to_device(int64_t begin, int64_t end, cudaStream_t stream) {
    cuda_check(cudaMemcpyAsync(device.view().data + begin, host.view().data + begin,
                               static_cast<size_t>(end - begin), cudaMemcpyHostToDevice, stream),
               "copy of the sampling parameters");
  }
  void copy_to_host(int64_t begin, int64_t end, cudaStream_t stream) {
    cuda_check(cudaMemcpyAsync(host.view().data + begin, device.view().data + begin,
                               static_cast<size_t>(end - begin), cudaMemcpyDeviceToHost, stream),
               "copy of the chosen tokens");
  }
};

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
  DeviceRunner(const Model& model, const Context& context, const CacheLimits& limits);
  ~DeviceRunner() override;

  Memory& memory() override { return device_.memory(); }
  const Scratch& scratch() const override { return scratch_; }
  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override;
  void draft(const ForwardBatch&, const LayerCache&, const ConstTensorView&, const TensorView&,
             const TensorView&) override {
    fail(ErrorCode::kUnsupported, "the MTP block does not run on a GPU yet");
  }
  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override;
  Memory& staging() override { return device_.pinned(); }
  void copy(std::span<const CopyPiece> pieces) override;
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override;
  void wait() override { device_.wait(); }
  void observe(Observer* observer) override { context_.observer = observer; }

 private:
  // A decode step of one size: run once, then captured. The graph's addresses are valid as long as
  // `workspace`, the bytes of all scratch, and `logits` are the same as at capture.
  struct Captured {
    std::optional<Graph> graph;
    int64_t workspace = 0;
    const std::byte* logits = nullptr;
  };

  std::optional<StepExtents> captured_extents(const ForwardBatch& batch, const StepExtents& exact,
                                              const TensorView& logits) const;
  void choose_experts(Step& step, bool captured);
  void run_captured(const StepExtents& extents, const TensorView& logits,
                    const std::function<void()>& enqueue);
  void send_lists(const SampleRows& rows);
  int64_t scratch_bytes() const {
    return scratch_.reserved_bytes() + device_.workspace().reserved_bytes();
  }

  Device& device_;
  const Model& model_;
  Context context_;
  const CapturedSteps captured_steps_;
  Scratch scratch_;
  Scratch list_scratch_;  // one chunk of page-locked memory
  const Workspace workspace_;
  Buffer list_mirror_;
  Event lists_copied_;
  const SampleLayout layout_;
  Mirrored sampling_;  // by layout_
  std::map<StepExtents, Captured> captured_;
  PieceList pieces_;                                     // of the last copy()
  std::vector<std::unique_ptr<PieceList>> piece_lists_;  // that no transfer uses now
  CopyStream copy_stream_;
  std::unique_ptr<StoreWaves> waves_;  // null: all experts are on the device
};

DeviceRunner::DeviceRunner(const Model& model, const Context& context, const CacheLimits& limits)
    : device_(*context.device),
      model_(model),
      context_(context),
      captured_steps_(model.cache_groups(), model.config().index_topk, limits),
      scratch_(device_.memory()),
      list_scratch_(device_.pinned()),
      workspace_(plan_workspace(model, context, limits, 0)),
      list_mirror_(DType::kU8, {workspace_.lists}, device_.memory()),
      layout_(sample_layout(model.config(), limits)),
      sampling_(device_, layout_.bytes),
      copy_stream_(device_) {
  list_scratch_.reserve(list_mirror_.view().numel());
  scratch_.reserve(workspace_.activations);
  if (model.expert_store() != nullptr) waves_ = make_store_waves(device_, *model.expert_store());
}

DeviceRunner::~DeviceRunner() {
  cudaStreamSynchronize(device_.stream());  // kernels may still use what goes away now
}

// What a decode step is padded to; nothing for steps that are not captured.
std::optional<StepExtents> DeviceRunner::captured_extents(const ForwardBatch& batch,
                                                          const StepExtents& exact,
                                                          const TensorView& logits) const {
  // An observer waits for every op, which a capture does not allow.
  if (device_.times() != nullptr || context_.observer != nullptr) return {};
  int64_t run_tokens = 0;
  for (const SequenceRun& run : batch.runs) run_tokens = std::max(run_tokens, run.count);
  std::optional<StepExtents> extents = captured_steps_.padded(exact, run_tokens);
  if (extents && extents->tokens > logits.dim(0)) return {};
  return extents;
}

void DeviceRunner::forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
                           const TensorView& logits, const DrafterStreams& drafter) {
  DSV4_CHECK(drafter.streams.rank == 0, "a step on a device enters no tokens for a {}", "drafter");
  lists_copied_.wait();  // the last step's lists have left the memory that this one's go to
  const Scratch::Scope scope(list_scratch_);
  const std::byte* const lists = list_scratch_.taken().data;
  const StepExtents exact = step_extents(model_.cache_groups(), batch);
  const std::optional<StepExtents> captured = captured_extents(batch, exact, logits);
  Step step =
      make_step(context_, model_.config(), model_.cache_groups(), batch, captured.value_or(exact),
                StepLists(list_scratch_, list_mirror_.view().data - lists), scratch_);
  const TensorView written = list_scratch_.taken();
  cuda_check(
      cudaMemcpyAsync(list_mirror_.view().data, written.data, static_cast<size_t>(written.bytes()),
                      cudaMemcpyHostToDevice, device_.stream()),
      "copy of the step's lists");
  lists_copied_.record(device_.stream());
  choose_experts(step, captured.has_value());
  const auto enqueue = [&] { model_.forward(step, caches, logits); };
  captured ? run_captured(*captured, logits, enqueue) : enqueue();
}

// A captured step makes its decisions on the device: the graph is the same for all of them.
void DeviceRunner::choose_experts(Step& step, bool captured) {
  if (waves_ == nullptr) return;
  if (captured || step.num_tokens <= kMostFetchedTokens) return waves_->places_changed();
  waves_->begin_step();
  step.waves = waves_.get();
}

void DeviceRunner::run_captured(const StepExtents& extents, const TensorView& logits,
                                const std::function<void()>& enqueue) {
  const auto [at, fresh] = captured_.try_emplace(extents);
  Captured& captured = at->second;
  if (fresh) return enqueue();
  if (!captured.graph) {
    captured.graph = Graph::capture(device_, enqueue);
  } else if (captured.workspace != scratch_bytes() || captured.logits != logits.data) {
    captured.graph->update(device_, enqueue);
  }
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

// Copies the parts of the lists that these rows have, and nothing else.
void DeviceRunner::send_lists(const SampleRows& rows) {
  std::byte* const host = sampling_.host.view().data;
  const auto put = [&](const auto& list, int64_t at) {
    const auto bytes = static_cast<int64_t>(list.size_bytes());
    std::memcpy(host + at, list.data(), static_cast<size_t>(bytes));
    return at + bytes;
  };
  put(rows.params, layout_.params_at);
  int64_t end = put(rows.steps, layout_.steps_at);
  if (!rows.term_begin.empty()) {
    put(rows.term_begin, layout_.begin_at);
    end = put(rows.terms, layout_.terms_at);
  }
  sampling_.copy_to_device(0, end, device_.stream());
  if (!rows.mask.empty())
    sampling_.copy_to_device(layout_.mask_at, put(rows.mask, layout_.mask_at), device_.stream());
}

std::vector<Sampled> DeviceRunner::sample(const ConstTensorView& logits, const SampleRows& rows) {
  const int64_t n = rows.count(), top = rows.most_top_logprobs();
  const auto num_terms = static_cast<int64_t>(rows.terms.size());
  DSV4_CHECK(n <= layout_.rows && num_terms <= layout_.terms, "{} rows, {} terms, room for {}, {}",
             n, num_terms, layout_.rows, layout_.terms);
  send_lists(rows);
  std::byte* const there = sampling_.device.view().data;
  const auto list = [&](DType dtype, int64_t at, std::initializer_list<int64_t> shape) {
    return TensorView(TensorMeta::contiguous(dtype, shape), there + at);
  };
  const auto count = static_cast<size_t>(n);
  SampleArgs args{
      .logits = logits,
      .params = {reinterpret_cast<const SamplingParams*>(there + layout_.params_at), count},
      .steps = {reinterpret_cast<const uint64_t*>(there + layout_.steps_at), count},
      .ids = list(DType::kI32, layout_.ids_at, {n}),
      .logprobs = list(DType::kF32, layout_.logprobs_at, {n}),
      .mask = rows.mask_view(there + layout_.mask_at)};
  if (!rows.term_begin.empty()) {
    args.terms = {reinterpret_cast<const TokenTerm*>(there + layout_.terms_at), rows.terms.size()};
    args.term_begin = {reinterpret_cast<const int32_t*>(there + layout_.begin_at), count + 1};
  }
  if (top > 0) {
    args.top_ids = list(DType::kI32, layout_.top_ids_at, {n, top});
    args.top_logprobs = list(DType::kF32, layout_.top_logprobs_at, {n, top});
  }
  dsv4::sample(context_, args);
  const int64_t end = top > 0 ? layout_.bytes : layout_.logprobs_at + 4 * n;
  sampling_.copy_to_host(layout_.ids_at, end, device_.stream());
  device_.wait();
  const std::byte* const host = sampling_.host.view().data;
  std::vector<Sampled> tokens =
      sampled_of(rows, reinterpret_cast<const int32_t*>(host + layout_.ids_at),
                 reinterpret_cast<const float*>(host + layout_.logprobs_at),
                 reinterpret_cast<const int32_t*>(host + layout_.top_ids_at),
                 reinterpret_cast<const float*>(host + layout_.top_logprobs_at));
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i].id < 0)
      throw NotFinite(fmt::format("the logits of row {} are not numbers to choose from", i));
  }
  return tokens;
}

}  // namespace

std::unique_ptr<Runner> make_device_runner(const Model& model, const Context& context,
                                           const CacheLimits& limits) {
  return std::make_unique<DeviceRunner>(model, context, limits);
}

}  // namespace dsv4
