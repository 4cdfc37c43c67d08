#include "dsv4/engine/executor.h"

#include <set>

#include "dsv4/base/error.h"
#include "dsv4/engine/check_numbers.h"

namespace dsv4 {
namespace {

Context placed(Context context, const Model& model) {
  context.device = model.device();
  return context;
}

// [tokens]
std::vector<int64_t> sequences_of(std::span<const Work> work) {
  std::vector<int64_t> sequences;
  for (const Work& item : work)
    sequences.insert(sequences.end(), item.ids.size(), static_cast<int64_t>(item.seq));
  return sequences;
}

}  // namespace

Executor::Executor(const Model& model, const Context& context, const CacheLimits& limits,
                   const RankOptions& ranks)
    : model_(model),
      runner_(make_runner(model, placed(context, model), limits, ranks)),
      cache_(model.config(), context.numerics, limits, runner_->memory()) {
  if (limits.checkpoints > 0) prefixes_ = std::make_unique<PrefixCache>(cache_, *runner_);
  logits_ = Buffer(DType::kF32, {limits.logits_rows(), model.config().vocab_size},
                   runner_->logits_memory());
}

ForwardBatch Executor::make_batch(std::span<const Work> work) const {
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
  return batch;
}

void Executor::start(std::span<const Work> work, const OnCheckpoint& on_checkpoint) {
  rows_ = 0;
  if (work.empty()) return;
  PageTables& tables = cache_.tables();
  std::set<SeqId> seen;
  for (const Work& item : work) {
    const auto count = static_cast<int64_t>(item.ids.size());
    DSV4_CHECK(count > 0, "sequence {:#x} brings no token", static_cast<uint64_t>(item.seq));
    DSV4_CHECK(seen.insert(item.seq).second, "sequence {:#x} appears twice",
               static_cast<uint64_t>(item.seq));
    if (!tables.reserve(item.seq, count)) {
      fail(ErrorCode::kResource, "no cache room for {} tokens after {}", count,
           tables.length(item.seq));
    }
  }
  const ForwardBatch batch = make_batch(work);
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  if (logits_.view().dim(0) < rows)
    logits_ = Buffer(DType::kF32, {rows, model_.config().vocab_size}, runner_->logits_memory());
  if (trace_ != nullptr) trace_->begin_step(sequences_of(work));
  runner_->forward(batch, cache_.layers(), logits_);
  for (size_t i = 0; i < work.size(); ++i) {
    const Work& item = work[i];
    if (item.drafted) continue;
    if (item.checkpoint > 0) {
      tables.commit(item.seq, item.checkpoint);
      on_checkpoint(i);
    }
    tables.commit(item.seq, static_cast<int64_t>(item.ids.size()) - item.checkpoint);
  }
  rows_ = rows;
}

void Executor::trace_experts(ExpertTrace* trace) {
  if (trace != nullptr && model_.device() != nullptr)
    fail(ErrorCode::kUnsupported, "experts are traced on the CPU: leave out --device {}", "cuda");
  trace_ = trace;
  runner_->observe(trace);
}

std::vector<Sampled> Executor::sample(const SampleRows& rows) {
  DSV4_CHECK(rows.count() == rows_, "{} parameters for {} rows of logits", rows.count(), rows_);
  if (runner_->on_host()) require_finite_logits(logits());
  std::vector<Sampled> tokens = runner_->sample(logits(), rows);
  process_logprobs(rows, tokens);
  return tokens;
}

void Executor::process_logprobs(const SampleRows& rows, std::vector<Sampled>& tokens) {
  const bool on_host = runner_->on_host();
  Buffer copy;
  for (int64_t r = 0; r < rows.count(); ++r) {
    if (!rows.params[static_cast<size_t>(r)].processed_logprobs) continue;
    ConstTensorView row = logits().slice(0, r, r + 1);
    if (!on_host) {
      if (copy.empty()) copy = Buffer(DType::kF32, {1, row.dim(1)});
      runner_->logits_memory().download(copy.view().data, row.data, row.bytes());
      row = copy;
    }
    tokens[static_cast<size_t>(r)] =
        with_drawn_logprobs(rows, r, row, tokens[static_cast<size_t>(r)].id);
  }
}

ConstTensorView Executor::run(std::span<const Work> work) {
  start(work);
  if (runner_->on_host()) {
    require_finite_logits(logits());
    return logits();
  }
  const ConstTensorView there = logits();
  if (host_logits_.empty() || host_logits_.view().dim(0) < rows_)
    host_logits_ = Buffer(DType::kF32, {rows_, there.dim(1)});
  runner_->logits_memory().download(host_logits_.view().data, there.data, there.bytes());
  const ConstTensorView rows = host_logits_.view().slice(0, 0, rows_);
  require_finite_logits(rows);
  return rows;
}

}  // namespace dsv4
