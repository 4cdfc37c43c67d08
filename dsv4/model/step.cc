#include "dsv4/model/step.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/compressor/compressor.h"

namespace dsv4 {
namespace {

constexpr int32_t kNoRow = -1;

// Cache row of logical entry `e` of a sequence.
int32_t row_of(std::span<const int32_t> pages, int64_t e, int page_entries) {
  return pages[static_cast<size_t>(e / page_entries)] * page_entries +
         static_cast<int32_t>(e % page_entries);
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

std::span<const int32_t> page_table(const SequenceRun& run, int ratio) {
  return ratio == 4 ? run.csa_pages : run.hca_pages;
}

StepExtents::Entries entry_extents(const ForwardBatch& batch, int ratio) {
  StepExtents::Entries most;
  for (const SequenceRun& run : batch.runs) {
    most.closed += num_closed_entries(run.position, run.count, ratio);
    most.visible = std::max(most.visible, (run.position + run.count) / ratio);
    most.pages = std::max(most.pages, static_cast<int64_t>(page_table(run, ratio).size()));
  }
  return most;
}

// Writes the lists of one step.
class ListWriter {
 public:
  ListWriter(Step& step, const ForwardBatch& batch, const StepExtents& extents, StepLists lists)
      : step_(step), batch_(batch), extents_(extents), lists_(lists) {}

  void tokens();
  void window(int page_entries);
  // `most` entries or fewer are all attended to and listed; beyond that the indexer chooses.
  EntryLists entries(int ratio, const StepExtents::Entries& extents, int64_t most,
                     int page_entries);

 private:
  // n values, then `padding` up to the extent.
  template <class Value>
  ConstTensorView list(int64_t extent, int64_t n, int32_t padding, const Value& value) {
    const TensorView view = lists_.take(DType::kI32, {extent});
    int32_t* out = view.as<int32_t>();
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(value(i));
    std::fill(out + n, out + extent, padding);
    return lists_.read(view);
  }
  // One value per token of every run: value(run, index of the token in it).
  template <class Value>
  ConstTensorView token_list(int32_t padding, const Value& value) {
    const TensorView view = lists_.take(DType::kI32, {extents_.tokens});
    int32_t* out = view.as<int32_t>();
    std::fill_n(out, extents_.tokens, padding);
    for (const SequenceRun& run : batch_.runs) {
      for (int64_t i = 0; i < run.count; ++i)
        out[run.first + i] = static_cast<int32_t>(value(run, i));
    }
    return lists_.read(view);
  }
  // One row of cache rows per token: `fill` writes the first ones, -1 follows.
  template <class Fill>
  ConstTensorView row_lists(int64_t columns, const Fill& fill) {
    const TensorView view = lists_.take(DType::kI32, {extents_.tokens, columns});
    std::fill_n(view.as<int32_t>(), view.numel(), kNoRow);
    for (const SequenceRun& run : batch_.runs) {
      for (int64_t i = 0; i < run.count; ++i)
        fill(run, run.position + i, view.row<int32_t>(run.first + i));
    }
    return lists_.read(view);
  }
  void closed(int ratio, int64_t extent, int page_entries, EntryLists& lists);
  ConstTensorView pages(int ratio, int64_t columns);

  Step& step_;
  const ForwardBatch& batch_;
  const StepExtents& extents_;
  StepLists lists_;
};

void ListWriter::tokens() {
  const auto runs = static_cast<int64_t>(batch_.runs.size());
  const auto total = static_cast<int64_t>(batch_.ids.size());
  const auto run = [&](int64_t i) -> const SequenceRun& {
    return batch_.runs[static_cast<size_t>(i)];
  };
  step_.ids = list(extents_.tokens, total, 0,
                   [&](int64_t i) { return batch_.ids[static_cast<size_t>(i)]; });
  step_.start = list(extents_.runs, runs, 0, [&](int64_t i) { return run(i).position; });
  step_.state_slots = list(extents_.runs, runs, -1, [&](int64_t i) { return run(i).slot; });
  step_.cu_tokens = list(extents_.runs + 1, runs, static_cast<int32_t>(total),
                         [&](int64_t i) { return run(i).first; });
  step_.positions = token_list(0, [](const SequenceRun& r, int64_t i) { return r.position + i; });
  step_.sequence =
      token_list(0, [&](const SequenceRun& r, int64_t) { return &r - batch_.runs.data(); });
  step_.logits_rows = list(extents_.logits_rows, static_cast<int64_t>(batch_.logits_rows.size()), 0,
                           [&](int64_t i) { return batch_.logits_rows[static_cast<size_t>(i)]; });
}

void ListWriter::window(int page_entries) {
  step_.window_new = token_list(kNoRow, [&](const SequenceRun& r, int64_t i) {
    return row_of(r.window_pages, r.position + i, page_entries);
  });
  const int64_t width = step_.config.window;
  step_.window_seen =
      row_lists(extents_.window, [&](const SequenceRun& r, int64_t t, int32_t* list) {
        const int64_t oldest = std::max<int64_t>(0, t - width + 1);
        for (int64_t e = oldest; e <= t; ++e)
          list[e - oldest] = row_of(r.window_pages, e, page_entries);
      });
}

void ListWriter::closed(int ratio, int64_t extent, int page_entries, EntryLists& lists) {
  const TensorView rows = lists_.take(DType::kI32, {extent});
  const TensorView positions = lists_.take(DType::kI32, {extent});
  std::fill_n(rows.as<int32_t>(), extent, kNoRow);
  std::fill_n(positions.as<int32_t>(), extent, 0);
  int64_t n = 0;
  for (const SequenceRun& run : batch_.runs) {
    for (int64_t w = run.position / ratio; w < (run.position + run.count) / ratio; ++w, ++n) {
      rows.as<int32_t>()[n] = row_of(page_table(run, ratio), w, page_entries);
      positions.as<int32_t>()[n] = static_cast<int32_t>(w * ratio);
    }
  }
  lists.closed_rows = lists_.read(rows);
  lists.closed_positions = lists_.read(positions);
}

ConstTensorView ListWriter::pages(int ratio, int64_t columns) {
  const TensorView view = lists_.take(DType::kI32, {extents_.runs, columns});
  std::fill_n(view.as<int32_t>(), view.numel(), -1);
  int64_t row = 0;
  for (const SequenceRun& run : batch_.runs) {
    const std::span<const int32_t> table = page_table(run, ratio);
    std::copy(table.begin(), table.end(), view.row<int32_t>(row++));
  }
  return lists_.read(view);
}

EntryLists ListWriter::entries(int ratio, const StepExtents::Entries& extents, int64_t most,
                               int page_entries) {
  EntryLists lists{.ratio = ratio, .max_visible = extents.visible};
  closed(ratio, extents.closed, page_entries, lists);
  lists.visible =
      token_list(0, [&](const SequenceRun& r, int64_t i) { return (r.position + i + 1) / ratio; });
  lists.pages = pages(ratio, extents.pages);
  if (lists.max_visible > most) return lists;
  lists.all_rows =
      row_lists(lists.max_visible, [&](const SequenceRun& r, int64_t t, int32_t* list) {
        for (int64_t w = 0; w < (t + 1) / ratio; ++w)
          list[w] = row_of(page_table(r, ratio), w, page_entries);
      });
  return lists;
}

}  // namespace

StepExtents step_extents(const ModelConfig& config, const ForwardBatch& batch) {
  StepExtents extents{.tokens = static_cast<int64_t>(batch.ids.size()),
                      .runs = static_cast<int64_t>(batch.runs.size()),
                      .logits_rows = static_cast<int64_t>(batch.logits_rows.size()),
                      .csa = entry_extents(batch, 4),
                      .hca = entry_extents(batch, 128)};
  for (const SequenceRun& run : batch.runs) {
    const int64_t seen = std::min(config.window, run.position + run.count);
    extents.window = std::max(extents.window, seen);
  }
  return extents;
}

Step make_step(const Context& context, const ModelConfig& config, const ForwardBatch& batch,
               const StepExtents& extents, std::span<const LayerCache> caches, StepLists lists,
               Scratch& scratch) {
  check_batch(batch, config);
  Step step{.context = context,
            .config = config,
            .scratch = scratch,
            .act = context.numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32,
            .num_tokens = extents.tokens};
  ListWriter writer(step, batch, extents, lists);
  writer.tokens();
  writer.window(caches.front().window.page_entries);
  for (size_t l = 0; l < caches.size(); ++l) {
    const int ratio = config.ratios[l], page_entries = caches[l].entries.page_entries;
    if (ratio == 4 && step.csa.ratio == 0)
      step.csa = writer.entries(ratio, extents.csa, config.index_topk, page_entries);
    if (ratio == 128 && step.hca.ratio == 0)
      step.hca = writer.entries(ratio, extents.hca, INT64_MAX, page_entries);
  }
  return step;
}

}  // namespace dsv4
