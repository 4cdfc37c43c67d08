#include "dsv4/engine/executor.h"

#include <set>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/engine/check_numbers.h"
#include "dsv4/engine/engine_options.h"

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
      cache_bytes_(cache_bytes(model.config(), context.numerics, limits)),
      runner_(make_runner(model, placed(context, model), limits, ranks)),
      cache_(model.config(), context.numerics, limits, runner_->memory()) {
  if (limits.checkpoints > 0) prefixes_ = std::make_unique<PrefixCache>(cache_, *runner_);
  logits_ = Buffer(DType::kF32, {limits.logits_rows(), model.config().vocab_size},
                   runner_->logits_memory());
  if (limits.drafter != DrafterKind::kNone)
    drafting_.emplace(model.config(), context.numerics, limits, runner_->memory());
}

std::vector<RankStats> Executor::rank_stats() const {
  std::vector<RankStats> all = runner_->rank_stats();
  for (RankStats& rank : all) rank.cache_bytes = cache_bytes_;
  return all;
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
  keep_streams();  // they lie where this step writes
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
  DrafterStreams drafter;
  if (keeps_streams()) drafter = {.streams = drafting_->streams(), .pending = cache_.streams()};
  runner_->forward(batch, cache_.layers(), logits_, drafter);
  drafted_.clear();
  for (size_t i = 0; i < work.size(); ++i) commit(work[i], batch.runs[i].first, on_checkpoint, i);
  keep_streams();
  rows_ = rows;
}

void Executor::trace_experts(ExpertTrace* trace) {
  if (trace != nullptr && (model_.device() != nullptr || !model_.id().whole()))
    fail(ErrorCode::kUnsupported,
         "experts are traced on the CPU, of a whole model: give --device {}", "cpu");
  trace_ = trace;
  runner_->observe(trace);
}

void Executor::commit(const Work& work, int64_t first, const OnCheckpoint& on_checkpoint,
                      size_t index) {
  const auto count = static_cast<int64_t>(work.ids.size());
  if (work.drafted) {
    drafted_[work.seq] = first;
    return;
  }
  PageTables& tables = cache_.tables();
  if (work.checkpoint > 0) {
    tables.commit(work.seq, work.checkpoint);
    keep_later(work.seq, first + work.checkpoint - 1);
    keep_streams();
    on_checkpoint(index);
  }
  tables.commit(work.seq, count - work.checkpoint);
  keep_later(work.seq, first + count - 1);
}

void Executor::commit_one(SeqId seq) {
  const auto drafted = drafted_.find(seq);
  DSV4_CHECK(drafted != drafted_.end(), "sequence {:#x} has no drafts", static_cast<uint64_t>(seq));
  cache_.tables().commit(seq, 1);
  keep_later(seq, drafted->second++);
}

// The next token of the sequence is entered from them.
void Executor::keep_later(SeqId seq, int64_t row) {
  if (keeps_streams()) kept_[cache_.tables().slot(seq)] = row;
}

void Executor::keep_streams() {
  if (kept_.empty()) return;
  std::vector<CopyPiece> pieces;
  const TensorView to = cache_.streams(), from = drafting_->streams();
  const int64_t bytes = cache_.plan().streams_bytes;
  for (const auto& [slot, row] : kept_)
    pieces.push_back({to.data + slot * bytes, from.data + row * bytes, bytes});
  runner_->copy(pieces);
  kept_.clear();
}

// A pass for each guess, of the rows that want it.
std::vector<ForwardBatch> Executor::draft_passes(std::span<const DraftRow> rows) const {
  std::vector<ForwardBatch> passes;
  for (int64_t pass = 0; pass < rows.front().most; ++pass) {
    ForwardBatch& batch = passes.emplace_back();
    for (const DraftRow& row : rows) {
      const auto index = static_cast<int32_t>(batch.ids.size());
      if (row.most <= pass) break;
      batch.runs.push_back(cache_.run(row.seq, index, 1));
      SequenceRun& run = batch.runs.back();
      batch.before.push_back(pass == 0 ? run.slot : index);
      run.position += pass;
      batch.ids.push_back(pass == 0 ? row.id : 0);
    }
  }
  return passes;
}

// The newest token of each row, and the id that stands for a token to be guessed.
ForwardBatch Executor::draft_block(std::span<const DraftRow> rows) const {
  const DsparkConfig& dspark = model_.config().dspark;
  ForwardBatch batch;
  for (const DraftRow& row : rows) {
    batch.runs.push_back(cache_.run(row.seq, std::ssize(batch.ids), dspark.block_size));
    batch.ids.push_back(row.id);
    batch.ids.resize(batch.ids.size() + static_cast<size_t>(dspark.block_size) - 1, dspark.noise);
  }
  return batch;
}

std::vector<Executor::Guesses> Executor::draft(std::span<const DraftRow> rows,
                                               const SampleRows& sampling) {
  keep_streams();
  DraftChain chain{.kind = cache_.limits().drafter,
                   .caches = cache_.drafter_layers(),
                   .pending = cache_.streams(),
                   .buffers = drafting_->views(),
                   .sampling = sampling};
  const int64_t most = rows.front().most;
  DSV4_CHECK(!chain.block() || most <= model_.config().dspark.block_size,
             "{} guesses of a block of {}", most, model_.config().dspark.block_size);
  chain.sequences.resize(static_cast<size_t>(most));
  for (size_t i = 0; i < rows.size(); ++i) {
    DSV4_CHECK(i == 0 || rows[i].most <= rows[i - 1].most,
               "row {} has {} guesses, more than the one before", i, rows[i].most);
    for (int64_t guess = 0; guess < rows[i].most; ++guess)
      ++chain.sequences[static_cast<size_t>(guess)];
  }
  if (chain.block()) {
    chain.passes.push_back(draft_block(rows));
  } else {
    chain.passes = draft_passes(rows);
  }
  const Drafted drafted = runner_->draft(chain);
  std::vector<Guesses> guesses(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t at = 0; std::cmp_less(at, rows[i].most) && drafted.ids[at][i] >= 0; ++at) {
      guesses[i].ids.push_back(drafted.ids[at][i]);
      if (!drafted.chances.empty()) guesses[i].chances.push_back(drafted.chances[at][i]);
    }
  }
  return guesses;
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
