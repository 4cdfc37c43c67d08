#include "dsv4/model/step.h"

#include <algorithm>
#include <functional>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/model/weight_table.h"
#include "dsv4/ops/parts/compressor/compressor.h"

namespace dsv4 {
namespace {

constexpr int32_t kNoRow = -1;

// Cache row of logical entry `e` of a sequence.
int32_t row_of(std::span<const int32_t> pages, int64_t e, int page_entries) {
  return pages[static_cast<size_t>(e / page_entries)] * page_entries +
         static_cast<int32_t>(e % page_entries);
}

void check_ids(const ForwardBatch& batch, const ModelConfig& config) {
  for (const int32_t id : batch.ids) {
    DSV4_CHECK(id >= 0 && id < config.vocab_size, "token id {} outside [0, {})", id,
               config.vocab_size);
  }
}

void check_batch(const ForwardBatch& batch, const ModelConfig& config, size_t num_groups) {
  int64_t next = 0;
  for (const SequenceRun& run : batch.runs) {
    DSV4_CHECK(run.first == next && run.count >= 1 && run.position >= 0,
               "run of {} tokens at {} (want {})", run.count, run.first, next);
    DSV4_CHECK(run.pages.size() == num_groups, "run with page tables of {} groups, not {}",
               run.pages.size(), num_groups);
    next += run.count;
  }
  DSV4_CHECK(next == static_cast<int64_t>(batch.ids.size()), "runs cover {} of {} tokens", next,
             batch.ids.size());
  check_ids(batch, config);
}

// First entry that a query at `position` still sees, and the one after the last.
int64_t first_visible(const CacheGroupSpec& group, int64_t position) {
  return group.keep_tokens == 0
             ? 0
             : std::max<int64_t>(0, position + 1 - group.keep_tokens) / group.ratio;
}
int64_t end_visible(const CacheGroupSpec& group, int64_t position) {
  return (position + 1) / group.ratio;
}

StepExtents::Group group_extents(const ForwardBatch& batch, const CacheGroupSpec& group, size_t g) {
  StepExtents::Group most;
  for (const SequenceRun& run : batch.runs) {
    const int64_t last = run.position + run.count - 1;
    const int64_t kept = group.keep_tokens == 0 ? INT64_MAX : group.keep_tokens;
    most.closed += num_closed_entries(run.position, run.count, group.ratio);
    most.visible = std::max(most.visible, std::min(kept, end_visible(group, last)));
    most.pages = std::max(most.pages, static_cast<int64_t>(run.pages[g].size()));
  }
  return most;
}

// Writes the lists of one step.
class ListWriter {
 public:
  ListWriter(Step& step, std::span<const CacheGroupSpec> groups, const ForwardBatch& batch,
             const StepExtents& extents, StepLists lists, int64_t first_place = 0)
      : step_(step),
        groups_(groups),
        batch_(batch),
        extents_(extents),
        lists_(lists),
        first_place_(first_place) {}

  void tokens();
  void entered();  // lists of the drafter, for tokens that the model computes
  void drafts();   // and for those that guess
  void blocks();   // of DSpark
  void own_ids(ShardId id);
  EntryLists window();
  EntryLists block_window();
  EntryLists entries(size_t group);

 private:
  // A list of padding alone, which the caller overwrites where the batch has values. In a dry run
  // the lists have no memory, and the batch is empty.
  TensorView padded(std::initializer_list<int64_t> shape, int32_t padding) {
    const TensorView view = lists_.take(DType::kI32, shape);
    if (!lists_.counting()) std::fill_n(view.as<int32_t>(), view.numel(), padding);
    return view;
  }
  // n values, then `padding` up to the extent.
  template <class Value>
  ConstTensorView list(int64_t extent, int64_t n, int32_t padding, const Value& value) {
    const TensorView view = padded({extent}, padding);
    int32_t* out = view.as<int32_t>();
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(value(i));
    return lists_.read(view);
  }
  // One value per token of every run: value(run, index of the token in it).
  template <class Value>
  ConstTensorView token_list(int32_t padding, const Value& value) {
    const TensorView view = padded({extents_.tokens}, padding);
    int32_t* out = view.as<int32_t>();
    for (const SequenceRun& run : batch_.runs) {
      for (int64_t i = 0; i < run.count; ++i)
        out[run.first + i] = static_cast<int32_t>(value(run, i));
    }
    return lists_.read(view);
  }
  // One row of cache rows per token: `fill` writes the first ones, -1 follows.
  template <class Fill>
  ConstTensorView row_lists(int64_t columns, const Fill& fill) {
    const TensorView view = padded({extents_.tokens, columns}, kNoRow);
    for (const SequenceRun& run : batch_.runs) {
      for (int64_t i = 0; i < run.count; ++i)
        fill(run, run.position + i, view.row<int32_t>(run.first + i));
    }
    return lists_.read(view);
  }
  ConstTensorView constants(std::initializer_list<int64_t> shape,
                            const std::function<float(int64_t)>& value);
  void additions();
  ConstTensorView closed_rows(size_t group);
  ConstTensorView closed_positions(size_t group);
  ConstTensorView pages(size_t group);
  ConstTensorView all_rows(size_t group);

  Step& step_;
  const std::span<const CacheGroupSpec> groups_;
  const ForwardBatch& batch_;
  const StepExtents& extents_;
  StepLists lists_;
  // Where the first row of a window is. The drafter's rows lie at the places of their tokens, of
  // which that at 0 has none, and stand for the position before.
  const int64_t first_place_;
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
  step_.positions =
      token_list(0, [&](const SequenceRun& r, int64_t i) { return r.position + i - first_place_; });
  step_.sequence =
      token_list(0, [&](const SequenceRun& r, int64_t) { return &r - batch_.runs.data(); });
  step_.logits_rows = list(extents_.logits_rows, static_cast<int64_t>(batch_.logits_rows.size()), 0,
                           [&](int64_t i) { return batch_.logits_rows[static_cast<size_t>(i)]; });
}

ConstTensorView ListWriter::constants(std::initializer_list<int64_t> shape,
                                      const std::function<float(int64_t)>& value) {
  const TensorView view = lists_.take(DType::kF32, shape);
  for (int64_t i = 0; !lists_.counting() && i < view.numel(); ++i) view.as<float>()[i] = value(i);
  return lists_.read(view);
}

// With these, hc_post adds the same to every stream.
void ListWriter::additions() {
  const int64_t m = step_.config.hc_mult;
  step_.drafter.ones = constants({extents_.tokens, m}, [](int64_t) { return 1.f; });
  step_.drafter.identity = constants(
      {extents_.tokens, m, m}, [m](int64_t i) { return i % (m * m) % (m + 1) == 0 ? 1.f : 0.f; });
}

void ListWriter::entered() {
  const CacheGroupSpec& group = groups_[kWindowGroup];
  DrafterLists& lists = step_.drafter;
  lists.before = token_list(0, [&](const SequenceRun& run, int64_t i) {
    if (i > 0) return run.first + i - 1;
    // There is none before position 0, whose row is not stored.
    return run.position == 0 ? run.first : extents_.tokens + (&run - batch_.runs.data());
  });
  lists.positions = token_list(0, [](const SequenceRun& run, int64_t i) {
    return std::max<int64_t>(0, run.position + i - 1);
  });
  lists.rows = token_list(kNoRow, [&](const SequenceRun& run, int64_t i) {
    const int64_t place = run.position + i;
    return place == 0 ? kNoRow : row_of(run.pages[kWindowGroup], place, group.page_entries);
  });
  additions();
}

void ListWriter::own_ids(ShardId id) {
  const int64_t vocab = step_.config.vocab_size, unit = kByBlock.unit;
  const ColumnEnds ends = column_ends(id.world, vocab, unit);
  const int64_t begin = id.rows(vocab, unit).begin;
  const auto owner = [&](int32_t token) {
    return std::upper_bound(ends.begin(), ends.end(), token) - ends.begin();
  };
  const auto token = [&](int64_t i) { return batch_.ids[static_cast<size_t>(i)]; };
  const auto total = static_cast<int64_t>(batch_.ids.size());
  // Tokens of padding are of id 0, as in tokens().
  step_.own.owners = list(extents_.tokens, total, static_cast<int32_t>(owner(0)),
                          [&](int64_t i) { return owner(token(i)); });
  step_.own.rows = list(extents_.tokens, total, 0, [&](int64_t i) {
    return owner(token(i)) == id.rank ? token(i) - begin : 0;
  });
  const TensorView in_order = padded({extents_.tokens}, 0);
  for (int64_t i = 0; !lists_.counting() && i < extents_.tokens; ++i)
    in_order.as<int32_t>()[i] = static_cast<int32_t>(i);
  step_.own.in_order = lists_.read(in_order);
}

void ListWriter::drafts() {
  step_.drafter.before = token_list(0, [&](const SequenceRun& run, int64_t i) {
    return batch_.before[static_cast<size_t>(run.first + i)];
  });
  additions();
}

void ListWriter::blocks() {
  const int64_t runs = extents_.runs, size = step_.config.dspark.block_size;
  const int64_t rows = lists_.counting() ? 0 : extents_.logits_rows;
  step_.logits_rows =
      list(extents_.logits_rows, rows, 0, [&](int64_t i) { return i % runs * size + i / runs; });
  step_.drafter.newest = list(runs, std::ssize(batch_.runs), 0, [&](int64_t i) {
    return batch_.ids[static_cast<size_t>(batch_.runs[static_cast<size_t>(i)].first)];
  });
  step_.drafter.ones = constants({runs, 1}, [](int64_t) { return 1.f; });
}

// Every token of a block sees the last W tokens before the block, and all of the block.
EntryLists ListWriter::block_window() {
  const CacheGroupSpec& group = groups_[kWindowGroup];
  EntryLists lists{.ratio = 1, .max_visible = extents_.groups[kWindowGroup].visible};
  lists.closed_rows =
      token_list(kNoRow, [](const SequenceRun& run, int64_t i) { return run.block_row + i; });
  lists.all_rows =
      row_lists(lists.max_visible, [&](const SequenceRun& run, int64_t, int32_t* list) {
        const int64_t first = std::max<int64_t>(0, run.position - group.keep_tokens);
        for (int64_t e = first; e < run.position; ++e)
          *list++ = row_of(run.pages[kWindowGroup], e, group.page_entries);
        for (int64_t i = 0; i < run.count; ++i) *list++ = run.block_row + static_cast<int32_t>(i);
      });
  return lists;
}

ConstTensorView ListWriter::closed_rows(size_t g) {
  const CacheGroupSpec& group = groups_[g];
  const TensorView view = padded({extents_.groups[g].closed}, kNoRow);
  int32_t* out = view.as<int32_t>();
  for (const SequenceRun& run : batch_.runs) {
    const int64_t end = (run.position + run.count) / group.ratio;
    for (int64_t e = run.position / group.ratio; e < end; ++e)
      *out++ = row_of(run.pages[g], e, group.page_entries);
  }
  return lists_.read(view);
}

ConstTensorView ListWriter::closed_positions(size_t g) {
  const int ratio = groups_[g].ratio;
  const TensorView view = padded({extents_.groups[g].closed}, 0);
  int32_t* out = view.as<int32_t>();
  for (const SequenceRun& run : batch_.runs) {
    const int64_t end = (run.position + run.count) / ratio;
    for (int64_t e = run.position / ratio; e < end; ++e) *out++ = static_cast<int32_t>(e * ratio);
  }
  return lists_.read(view);
}

ConstTensorView ListWriter::pages(size_t g) {
  const TensorView view = padded({extents_.runs, extents_.groups[g].pages}, kNoRow);
  int64_t row = 0;
  for (const SequenceRun& run : batch_.runs)
    std::copy(run.pages[g].begin(), run.pages[g].end(), view.row<int32_t>(row++));
  return lists_.read(view);
}

ConstTensorView ListWriter::all_rows(size_t g) {
  const CacheGroupSpec& group = groups_[g];
  return row_lists(extents_.groups[g].visible,
                   [&](const SequenceRun& run, int64_t position, int32_t* list) {
                     const int64_t end = end_visible(group, position);
                     const int64_t first = std::max(first_place_, first_visible(group, position));
                     for (int64_t e = first; e < end; ++e)
                       *list++ = row_of(run.pages[g], e, group.page_entries);
                   });
}

EntryLists ListWriter::window() {
  EntryLists lists{.ratio = 1, .max_visible = extents_.groups[kWindowGroup].visible};
  lists.closed_rows = closed_rows(kWindowGroup);
  lists.all_rows = all_rows(kWindowGroup);
  return lists;
}

EntryLists ListWriter::entries(size_t g) {
  const CacheGroupSpec& group = groups_[g];
  EntryLists lists{.ratio = group.ratio, .max_visible = extents_.groups[g].visible};
  lists.closed_rows = closed_rows(g);
  lists.closed_positions = closed_positions(g);
  lists.visible = token_list(
      0, [&](const SequenceRun& run, int64_t i) { return end_visible(group, run.position + i); });
  lists.settled =
      token_list(0, [&](const SequenceRun& run, int64_t) { return run.position / group.ratio; });
  lists.pages = pages(g);
  // As many as the indexer may choose are all attended to.
  const bool all = !group.has_index || lists.max_visible <= step_.config.index_topk;
  if (all) lists.all_rows = all_rows(g);
  return lists;
}

}  // namespace

StepExtents step_extents(std::span<const CacheGroupSpec> groups, const ForwardBatch& batch) {
  StepExtents extents{.tokens = static_cast<int64_t>(batch.ids.size()),
                      .runs = static_cast<int64_t>(batch.runs.size()),
                      .logits_rows = static_cast<int64_t>(batch.logits_rows.size())};
  for (size_t g = 0; g < groups.size(); ++g)
    extents.groups.push_back(group_extents(batch, groups[g], g));
  return extents;
}

Step make_step(const Context& context, const ModelConfig& config,
               std::span<const CacheGroupSpec> groups, const ForwardBatch& batch,
               const StepExtents& extents, StepLists lists, Scratch& scratch, ShardId id) {
  check_batch(batch, config, groups.size());
  Step step{.context = context,
            .config = config,
            .scratch = scratch,
            .act = activation_dtype(context),
            .num_tokens = extents.tokens};
  ListWriter writer(step, groups, batch, extents, lists);
  writer.tokens();
  step.groups.push_back(writer.window());
  for (size_t g = kWindowGroup + 1; g < groups.size(); ++g)
    step.groups.push_back(writer.entries(g));
  step.enters = extents.enters;
  if (extents.enters == DrafterKind::kMtp) writer.entered();
  if (!id.whole()) writer.own_ids(id);
  return step;
}

Step make_draft_step(const Context& context, const ModelConfig& config,
                     const CacheGroupSpec& window, const ForwardBatch& batch,
                     const StepExtents& extents, StepLists lists, Scratch& scratch) {
  DSV4_CHECK(batch.before.size() == batch.ids.size(), "{} tokens after {} rows of streams",
             batch.ids.size(), batch.before.size());
  for (const SequenceRun& run : batch.runs)
    DSV4_CHECK(run.position >= 1 && run.count == 1, "a draft of {} tokens at position {}",
               run.count, run.position);
  check_ids(batch, config);
  Step step{.context = context,
            .config = config,
            .scratch = scratch,
            .act = activation_dtype(context),
            .num_tokens = extents.tokens};
  ListWriter writer(step, {&window, 1}, batch, extents, lists, /*first_place=*/1);
  writer.tokens();
  writer.drafts();
  step.groups.push_back(writer.window());
  return step;
}

StepExtents block_extents(const ModelConfig& config, int64_t runs, int64_t guesses) {
  const int64_t size = config.dspark.block_size, tokens = runs * size;
  return {.tokens = tokens,
          .runs = runs,
          .logits_rows = runs * guesses,
          .groups = {{.closed = tokens, .visible = config.window + size}}};
}

Step make_block_step(const Context& context, const ModelConfig& config,
                     const CacheGroupSpec& window, const ForwardBatch& batch,
                     const StepExtents& extents, StepLists lists, Scratch& scratch, ShardId id) {
  for (const SequenceRun& run : batch.runs)
    DSV4_CHECK(run.position >= 1 && run.count == config.dspark.block_size,
               "a block of {} tokens at position {}", run.count, run.position);
  check_ids(batch, config);
  Step step{.context = context,
            .config = config,
            .scratch = scratch,
            .act = activation_dtype(context),
            .num_tokens = extents.tokens};
  ListWriter writer(step, {&window, 1}, batch, extents, lists);
  writer.tokens();
  writer.blocks();
  if (!id.whole()) writer.own_ids(id);
  step.groups.push_back(writer.block_window());
  return step;
}

}  // namespace dsv4
