#include "dsv4/engine/rank_messages.h"

namespace dsv4 {

void put_context(MessageWriter& to, const Context& context) {
  to.put(context.numerics).put(uint8_t{context.need_batch_invariant});
  to.put(static_cast<uint64_t>(context.choices.size()));
  for (const ImplChoice& choice : context.choices)
    to.text(std::string(choice.op)).text(std::string(choice.impl));
}

std::unique_ptr<ContextText> get_context(MessageReader& from) {
  auto text = std::make_unique<ContextText>();
  text->context.numerics = from.get<Numerics>();
  text->context.need_batch_invariant = from.get<uint8_t>() != 0;
  const auto count = from.get<uint64_t>();
  for (uint64_t i = 0; i < count; ++i) {
    std::string op = from.text();
    text->names.emplace_back(std::move(op), from.text());
  }
  for (const auto& [op, impl] : text->names) text->choices.push_back({op, impl});
  text->context.choices = text->choices;
  return text;
}

void place_others(const Model& model, int64_t cache_bytes, const Context& steps) {
  if (model.processes() == nullptr) return;
  MessageWriter message;
  message.put(cache_bytes);
  put_context(message, steps);
  model.processes()->tell(kind_of(RankMessage::kPlace), message.bytes());
}

void fill_others(const Model& model, std::span<const LayerCache> caches, uint64_t seed) {
  if (model.processes() == nullptr) return;
  MessageWriter message;
  message.put(seed);
  put_caches(message, caches);
  model.processes()->tell(kind_of(RankMessage::kFill), message.bytes());
}

namespace {

void put_batch(MessageWriter& to, const ForwardBatch& batch) {
  const auto ids = [&](const std::vector<int32_t>& values) {
    to.list(std::span<const int32_t>(values));
  };
  ids(batch.ids);
  ids(batch.logits_rows);
  ids(batch.before);
  to.put(static_cast<uint64_t>(batch.runs.size()));
  for (const SequenceRun& run : batch.runs) {
    to.put(run.first).put(run.count).put(run.position).put(run.slot).put(run.block_row);
    to.put(static_cast<uint64_t>(run.pages.size()));
    for (const std::span<const int32_t> pages : run.pages) to.list(pages);
  }
}

// tables: that the batch points to
ForwardBatch get_batch(MessageReader& from, std::deque<std::vector<int32_t>>& tables) {
  ForwardBatch batch;
  batch.ids = from.list<int32_t>();
  batch.logits_rows = from.list<int32_t>();
  batch.before = from.list<int32_t>();
  const auto runs = from.get<uint64_t>();
  for (uint64_t i = 0; i < runs; ++i) {
    SequenceRun run;
    run.first = from.get<int64_t>();
    run.count = from.get<int64_t>();
    run.position = from.get<int64_t>();
    run.slot = from.get<int32_t>();
    run.block_row = from.get<int32_t>();
    const auto groups = from.get<uint64_t>();
    for (uint64_t g = 0; g < groups; ++g)
      run.pages.emplace_back(tables.emplace_back(from.list<int32_t>()));
    batch.runs.push_back(std::move(run));
  }
  return batch;
}

}  // namespace

namespace {

void check_view(const TensorMeta& view) {
  constexpr int64_t kMostElements = int64_t{1} << 48;  // their bytes can be counted
  if (view.rank < 0 || view.rank > kMaxRank)
    fail(ErrorCode::kBadInput, "rank 0 sent a tensor of {} dimensions", view.rank);
  if (view.dtype > DType::kBool)
    fail(ErrorCode::kBadInput, "rank 0 sent a tensor of type {}", static_cast<int>(view.dtype));
  int64_t elements = 1;
  for (int axis = 0; axis < view.rank; ++axis)
    if (view.dim(axis) < 0 || __builtin_mul_overflow(elements, view.dim(axis), &elements) ||
        elements > kMostElements)
      fail(ErrorCode::kBadInput, "rank 0 sent a tensor of {} in dimension {}", view.dim(axis),
           axis);
}

std::vector<LayerCache> checked_caches(MessageReader& from) {
  std::vector<LayerCache> caches = from.list<LayerCache>();
  for (LayerCache& layer : caches) move_cache(layer, check_view);
  return caches;
}

}  // namespace

void put_plan(MessageWriter& to, const StepPlan& plan, StepForm form) {
  to.put(plan.step()).put(uint8_t{form.eager}).put(form.logits_rows).put(form.drafter);
  put_batch(to, plan.batch());
}

std::unique_ptr<StepPlan> get_plan(MessageReader& from, StepForm& form) {
  const auto step = from.get<int64_t>();
  form.eager = from.get<uint8_t>() != 0;
  form.logits_rows = from.get<int64_t>();
  form.drafter = from.get<DrafterStreams>();
  check_view(form.drafter.streams), check_view(form.drafter.pending);
  std::deque<std::vector<int32_t>> tables;
  const ForwardBatch batch = get_batch(from, tables);
  from.end();
  return std::make_unique<StepPlan>(step, batch);  // copies the tables
}

void put_draft(MessageWriter& to, const DraftChain& chain, bool eager) {
  const SampleRows& rows = chain.sampling;
  to.put(uint8_t{eager}).put(chain.kind).list(std::span<const int64_t>(chain.sequences));
  to.put(static_cast<uint64_t>(chain.passes.size()));
  for (const ForwardBatch& pass : chain.passes) put_batch(to, pass);
  put_caches(to, chain.caches);
  to.put(chain.pending).put(chain.buffers);
  to.list(rows.params).list(rows.steps).list(rows.terms).list(rows.term_begin).list(rows.mask);
}

namespace {

// No pass has more sequences than the first, and each has a run for each of its sequences.
void check_draft(const DraftChain& chain) {
  const auto most = chain.sequences.empty() ? 0 : chain.sequences.front();
  bool fits = most > 0 && chain.passes.size() == (chain.block() ? 1 : chain.guesses());
  for (const int64_t n : chain.sequences) fits = fits && 0 < n && n <= most;
  for (size_t pass = 0; fits && pass < chain.passes.size(); ++pass)
    fits = std::ssize(chain.passes[pass].runs) == chain.sequences[pass];
  const SampleRows& rows = chain.sampling;
  const auto n = static_cast<size_t>(most);
  fits = fits && rows.params.size() == n && rows.steps.size() == n && rows.mask.size() % n == 0 &&
         (rows.term_begin.empty() || rows.term_begin.size() == n + 1);
  if (!fits)
    fail(ErrorCode::kBadInput, "drafts of {} passes for {} sequences with {} parameters",
         chain.passes.size(), most, rows.params.size());
}

}  // namespace

std::unique_ptr<DraftPlan> get_draft(MessageReader& from, const AddressHere& at, bool& eager) {
  eager = from.get<uint8_t>() != 0;
  DraftChain chain{.kind = from.get<DrafterKind>()};
  chain.sequences = from.list<int64_t>();
  std::deque<std::vector<int32_t>> tables;
  const auto passes = from.get<uint64_t>();
  for (uint64_t pass = 0; pass < passes; ++pass) chain.passes.push_back(get_batch(from, tables));
  const std::vector<LayerCache> caches = checked_caches(from);
  chain.caches = caches;
  chain.pending = from.get<ConstTensorView>();
  chain.buffers = from.get<DraftViews>();
  const auto params = from.list<SamplingParams>();
  const auto steps = from.list<uint64_t>();
  const auto terms = from.list<TokenTerm>();
  const auto term_begin = from.list<int32_t>();
  const auto mask = from.list<uint32_t>();
  from.end();
  chain.sampling = {
      .params = params, .steps = steps, .terms = terms, .term_begin = term_begin, .mask = mask};
  check_draft(chain);
  return std::make_unique<DraftPlan>(  // copies all of them
      chain, [&](auto& view) {
        check_view(view);
        view.data = at(view.data, view.bytes());
      });
}

void put_caches(MessageWriter& to, std::span<const LayerCache> caches) {
  to.list(caches);
}

std::vector<LayerCache> get_caches(MessageReader& from) {
  std::vector<LayerCache> caches = checked_caches(from);
  from.end();
  return caches;
}

}  // namespace dsv4
