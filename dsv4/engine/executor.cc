#include "dsv4/engine/executor.h"

#include <set>

#include "dsv4/base/error.h"
#include "dsv4/engine/workspace.h"

namespace dsv4 {

Executor::Executor(const Model& model, const Context& context, const CacheLimits& limits)
    : model_(model), context_(context), cache_(model.config(), context.numerics, limits) {
  const Workspace plan = plan_workspace(model.config(), context.numerics, limits, 0);
  const int64_t vocab = model.config().vocab_size;
  scratch_.reserve(plan.scratch);
  logits_ = Buffer(DType::kF32, {plan.logits / vocab / item_bytes(DType::kF32), vocab});
}

ConstTensorView Executor::run(std::span<const Work> work) {
  KvCache& pages = cache_.pages();
  std::set<SeqId> seen;
  for (const Work& item : work) {
    const auto count = static_cast<int64_t>(item.ids.size());
    DSV4_CHECK(count > 0, "sequence {} brings no token", static_cast<int>(item.seq));
    DSV4_CHECK(seen.insert(item.seq).second, "sequence {} appears twice",
               static_cast<int>(item.seq));
    if (!pages.reserve(item.seq, count)) {
      fail(ErrorCode::kResource, "no cache room for {} tokens after {}", count,
           pages.length(item.seq));
    }
  }
  ForwardBatch batch;
  for (const Work& item : work) {
    const auto first = static_cast<int64_t>(batch.ids.size()),
               count = static_cast<int64_t>(item.ids.size());
    batch.runs.push_back(cache_.run(item.seq, first, count));
    batch.ids.insert(batch.ids.end(), item.ids.begin(), item.ids.end());
    const int64_t from = item.logits == Work::Logits::kAll    ? first
                         : item.logits == Work::Logits::kLast ? first + count - 1
                                                              : first + count;
    for (int64_t row = from; row < first + count; ++row)
      batch.logits_rows.push_back(static_cast<int32_t>(row));
  }
  const auto rows = static_cast<int64_t>(batch.logits_rows.size()),
             vocab = model_.config().vocab_size;
  if (logits_.view().dim(0) < rows) logits_ = Buffer(DType::kF32, {rows, vocab});
  const TensorView logits = logits_.view().slice(0, 0, rows);
  model_.forward(context_, batch, cache_.layers(), scratch_, logits);
  for (const Work& item : work) pages.commit(item.seq, static_cast<int64_t>(item.ids.size()));
  return logits;
}

}  // namespace dsv4
