#include "dsv4/engine/rank_messages.h"

namespace dsv4 {

void put_context(MessageWriter& to, const Context& context) {
  to.put(context.numerics).put(context.need_batch_invariant);
  to.put(static_cast<uint64_t>(context.choices.size()));
  for (const ImplChoice& choice : context.choices)
    to.text(std::string(choice.op)).text(std::string(choice.impl));
}

std::unique_ptr<ContextText> get_context(MessageReader& from) {
  auto text = std::make_unique<ContextText>();
  text->context.numerics = from.get<Numerics>();
  text->context.need_batch_invariant = from.get<bool>();
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

void put_plan(MessageWriter& to, const StepPlan& plan, StepForm form) {
  const ForwardBatch& batch = plan.batch();
  const auto ids = [&](const std::vector<int32_t>& values) {
    to.list(std::span<const int32_t>(values));
  };
  to.put(plan.step()).put(uint8_t{form.eager}).put(form.logits_rows);
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

std::unique_ptr<StepPlan> get_plan(MessageReader& from, StepForm& form) {
  const auto step = from.get<int64_t>();
  form.eager = from.get<uint8_t>() != 0;
  form.logits_rows = from.get<int64_t>();
  ForwardBatch batch;
  batch.ids = from.list<int32_t>();
  batch.logits_rows = from.list<int32_t>();
  batch.before = from.list<int32_t>();
  std::deque<std::vector<int32_t>> tables;
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
  from.end();
  return std::make_unique<StepPlan>(step, batch);  // copies the tables
}

void put_caches(MessageWriter& to, std::span<const LayerCache> caches) {
  to.list(caches);
}

std::vector<LayerCache> get_caches(MessageReader& from) {
  std::vector<LayerCache> caches = from.list<LayerCache>();
  from.end();
  return caches;
}

}  // namespace dsv4
