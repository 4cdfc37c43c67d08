#include "dsv4/model/step.h"

#include <algorithm>
#include <limits>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/compressor/compressor.h"

namespace dsv4 {
namespace {

// Cache row of logical entry `e` of a sequence.
int32_t row_of(std::span<const int32_t> pages, int64_t e, int page_entries) {
  return pages[static_cast<size_t>(e / page_entries)] * page_entries +
         static_cast<int32_t>(e % page_entries);
}

template <class Value>
ConstTensorView take_i32(Scratch& scratch, int64_t n, const Value& value) {
  const TensorView view = scratch.take(DType::kI32, {n});
  for (int64_t i = 0; i < n; ++i) view.as<int32_t>()[i] = static_cast<int32_t>(value(i));
  return view;
}

void check_batch(const ForwardBatch& batch, const ModelConfig& config) {
  int64_t next = 0;
  for (const SequenceRun& run : batch.runs) {
    DSV4_CHECK(run.first == next && run.count >= 1 && run.position >= 0,
               "run of {} tokens at {} (want {})", run.count, run.first, next);
    next += run.count;
  }
  DSV4_CHECK(next == static_cast<int64_t>(batch.ids.size()), "runs cover {} of {} tokens", next,
             batch.ids.size());
  for (const int32_t id : batch.ids) {
    DSV4_CHECK(id >= 0 && id < config.vocab_size, "token id {} outside [0, {})", id,
               config.vocab_size);
  }
}

void fill_window(Step& step, int page_entries) {
  const int64_t window = step.config.window;
  int64_t longest = 0;
  for (const SequenceRun& run : step.batch.runs) {
    longest = std::max(longest, std::min(window, run.position + run.count));
  }
  const TensorView fresh = step.scratch.take(DType::kI32, {step.num_tokens});
  const TensorView seen = step.scratch.take(DType::kI32, {step.num_tokens, longest});
  for (const SequenceRun& run : step.batch.runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t t = run.position + i;
      fresh.as<int32_t>()[run.first + i] = row_of(run.window_pages, t, page_entries);
      int32_t* list = seen.row<int32_t>(run.first + i);
      const int64_t oldest = std::max<int64_t>(0, t - window + 1);
      for (int64_t j = 0; j < longest; ++j) {
        list[j] = oldest + j <= t ? row_of(run.window_pages, oldest + j, page_entries) : -1;
      }
    }
  }
  step.window_new = fresh;
  step.window_seen = seen;
}

// Rows of every visible entry, [T, max_visible], -1 padded.
template <class PagesOf>
ConstTensorView list_all(Step& step, const EntryLists& lists, int page_entries,
                         const PagesOf& pages_of) {
  const TensorView all = step.scratch.take(DType::kI32, {step.num_tokens, lists.max_visible});
  for (const SequenceRun& run : step.batch.runs) {
    const std::span<const int32_t> table = pages_of(run);
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t sees = (run.position + i + 1) / lists.ratio;
      int32_t* list = all.row<int32_t>(run.first + i);
      for (int64_t w = 0; w < lists.max_visible; ++w) {
        list[w] = w < sees ? row_of(table, w, page_entries) : -1;
      }
    }
  }
  return all;
}

// `pages_of` picks the page table of a run: the CSA or the HCA group. `most` entries or fewer are
// all attended to and listed; beyond that the indexer chooses.
template <class PagesOf>
EntryLists make_entries(Step& step, int ratio, int64_t most, int page_entries,
                        const PagesOf& pages_of) {
  EntryLists lists{.ratio = ratio};
  const auto& runs = step.batch.runs;
  int64_t closed = 0, max_pages = 1;
  for (const SequenceRun& run : runs) {
    closed += num_closed_entries(run.position, run.count, ratio);
    lists.max_visible = std::max(lists.max_visible, (run.position + run.count) / ratio);
    max_pages = std::max(max_pages, static_cast<int64_t>(pages_of(run).size()));
  }
  const TensorView rows = step.scratch.take(DType::kI32, {closed});
  const TensorView positions = step.scratch.take(DType::kI32, {closed});
  const TensorView visible = step.scratch.take(DType::kI32, {step.num_tokens});
  const TensorView pages =
      step.scratch.take(DType::kI32, {static_cast<int64_t>(runs.size()), max_pages});
  int64_t n = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    const SequenceRun& run = runs[r];
    const std::span<const int32_t> table = pages_of(run);
    int32_t* copy = pages.row<int32_t>(static_cast<int64_t>(r));
    std::fill(std::copy(table.begin(), table.end(), copy), copy + max_pages, -1);
    for (int64_t w = run.position / ratio; w < (run.position + run.count) / ratio; ++w, ++n) {
      rows.as<int32_t>()[n] = row_of(table, w, page_entries);
      positions.as<int32_t>()[n] = static_cast<int32_t>(w * ratio);
    }
    for (int64_t i = 0; i < run.count; ++i) {
      visible.as<int32_t>()[run.first + i] = static_cast<int32_t>((run.position + i + 1) / ratio);
    }
  }
  lists.closed_rows = rows;
  lists.closed_positions = positions;
  lists.visible = visible;
  lists.pages = pages;
  if (lists.max_visible <= most) lists.all_rows = list_all(step, lists, page_entries, pages_of);
  return lists;
}

}  // namespace

Step make_step(const Context& context, const ModelConfig& config, const ForwardBatch& batch,
               std::span<const LayerCache> caches, Scratch& scratch) {
  check_batch(batch, config);
  const auto num_runs = static_cast<int64_t>(batch.runs.size());
  const auto run = [&](int64_t i) -> const SequenceRun& {
    return batch.runs[static_cast<size_t>(i)];
  };
  Step step{.context = context,
            .config = config,
            .batch = batch,
            .scratch = scratch,
            .act = context.numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32,
            .num_tokens = static_cast<int64_t>(batch.ids.size())};
  step.ids = take_i32(scratch, step.num_tokens,
                      [&](int64_t i) { return batch.ids[static_cast<size_t>(i)]; });
  step.start = take_i32(scratch, num_runs, [&](int64_t i) { return run(i).position; });
  step.state_slots = take_i32(scratch, num_runs, [&](int64_t i) { return run(i).slot; });
  step.cu_tokens = take_i32(scratch, num_runs + 1, [&](int64_t i) {
    return i < num_runs ? run(i).first : step.num_tokens;
  });
  const TensorView positions = scratch.take(DType::kI32, {step.num_tokens});
  const TensorView sequence = scratch.take(DType::kI32, {step.num_tokens});
  for (int64_t r = 0; r < num_runs; ++r) {
    for (int64_t i = 0; i < run(r).count; ++i) {
      positions.as<int32_t>()[run(r).first + i] = static_cast<int32_t>(run(r).position + i);
      sequence.as<int32_t>()[run(r).first + i] = static_cast<int32_t>(r);
    }
  }
  step.positions = positions;
  step.sequence = sequence;

  fill_window(step, caches.front().window.page_entries);
  for (size_t l = 0; l < caches.size(); ++l) {
    const int ratio = config.ratios[l], page_entries = caches[l].entries.page_entries;
    if (ratio == 4 && step.csa.ratio == 0) {
      step.csa = make_entries(step, ratio, config.index_topk, page_entries,
                              [](const SequenceRun& r) { return r.csa_pages; });
    } else if (ratio == 128 && step.hca.ratio == 0) {
      step.hca = make_entries(step, ratio, std::numeric_limits<int64_t>::max(), page_entries,
                              [](const SequenceRun& r) { return r.hca_pages; });
    }
  }
  return step;
}

}  // namespace dsv4
