#include "dsv4/engine/unit_bytes.h"

#include <algorithm>

#include "dsv4/base/error.h"

namespace dsv4 {

UnitBytes::UnitBytes(const ModelCache& cache, Runner& runner, int64_t step, int64_t state_bytes)
    : cache_(cache), runner_(runner), state_bytes_(state_bytes), layout_{.step = step} {
  const CachePlan& plan = cache.plan();
  layout_.checkpoint_bytes = state_bytes;
  for (const CachePlan::Pool& pool : plan.pools) {
    const CacheGroup& group = plan.groups[static_cast<size_t>(pool.group)];
    const int64_t page_bytes = pool.page_items * item_bytes(pool.dtype);
    if (group.keep_tokens > 0) {
      layout_.checkpoint_bytes += kept_pages(group) * page_bytes;
    } else {
      layout_.block_bytes += entries_of_step(group) * (pool.entry_bytes + pool.scale_bytes);
    }
  }
}

int64_t UnitBytes::entries_of_step(const CacheGroup& group) const {
  return layout_.step / group.tokens_per_entry;
}

// Pages kept of a long text that ends on a step. A text that is shorter than keep_tokens has fewer,
// and the end of its checkpoint is unused.
int64_t UnitBytes::kept_pages(const CacheGroup& group) const {
  const int64_t far = (group.keep_tokens / layout_.step + 1) * layout_.step;
  return held_pages(group, far);
}

std::span<std::byte> UnitBytes::page_bytes(size_t pool, int32_t page) const {
  DSV4_CHECK(page >= 0, "a page of pool {} was given back", pool);
  const TensorView& pages = cache_.pools().pool(static_cast<int>(pool));
  const int64_t bytes = pages.dim(1) * item_bytes(pages.dtype);
  return {pages.data + page * bytes, static_cast<size_t>(bytes)};
}

void UnitBytes::append_entries(Pieces& pieces, size_t pool, int32_t page, int64_t first,
                               int64_t count) const {
  const CachePlan::Pool& plan = cache_.plan().pools[pool];
  const int64_t page_entries = cache_.plan().groups[static_cast<size_t>(plan.group)].page_entries;
  std::byte* const entries = page_bytes(pool, page).data();
  std::byte* const scales = entries + page_entries * plan.entry_bytes;
  pieces.emplace_back(entries + first * plan.entry_bytes,
                      static_cast<size_t>(count * plan.entry_bytes));
  if (plan.scale_bytes > 0)
    pieces.emplace_back(scales + first * plan.scale_bytes,
                        static_cast<size_t>(count * plan.scale_bytes));
}

UnitBytes::Pieces UnitBytes::blocks(const PagePrefix& pages, int64_t first) const {
  const CachePlan& plan = cache_.plan();
  Pieces pieces;
  for (int64_t step = first / layout_.step; step < pages.tokens / layout_.step; ++step) {
    for (size_t pool = 0; pool < plan.pools.size(); ++pool) {
      const auto g = static_cast<size_t>(plan.pools[pool].group);
      if (plan.groups[g].keep_tokens > 0) continue;
      const int64_t page_entries = plan.groups[g].page_entries,
                    count = entries_of_step(plan.groups[g]), end = (step + 1) * count;
      for (int64_t e = step * count; e < end;) {
        const int64_t page = e / page_entries, stop = std::min(end, (page + 1) * page_entries);
        append_entries(pieces, pool, pages.tables[g][static_cast<size_t>(page)], e % page_entries,
                       stop - e);
        e = stop;
      }
    }
  }
  return pieces;
}

UnitBytes::Pieces UnitBytes::checkpoint(const PagePrefix& pages, std::byte* states) const {
  const CachePlan& plan = cache_.plan();
  Pieces pieces;
  if (state_bytes_ > 0) pieces.emplace_back(states, static_cast<size_t>(state_bytes_));
  for (size_t pool = 0; pool < plan.pools.size(); ++pool) {
    const auto g = static_cast<size_t>(plan.pools[pool].group);
    if (plan.groups[g].keep_tokens == 0) continue;
    const std::vector<int32_t>& table = pages.tables[g];
    const auto count = static_cast<size_t>(held_pages(plan.groups[g], pages.tokens));
    for (size_t p = table.size() - count; p < table.size(); ++p)
      pieces.push_back(page_bytes(pool, table[p]));
  }
  return pieces;
}

// Both lists are cut differently; the shorter one says how much there is.
void UnitBytes::pair(const Pieces& to, const Pieces& from, std::vector<CopyPiece>& copies) {
  size_t t = 0, f = 0;
  std::span<std::byte> target, source;
  for (;;) {
    while (target.empty() && t < to.size()) target = to[t++];
    while (source.empty() && f < from.size()) source = from[f++];
    const size_t bytes = std::min(target.size(), source.size());
    if (bytes == 0) return;
    copies.push_back({target.data(), source.data(), static_cast<int64_t>(bytes)});
    target = target.subspan(bytes);
    source = source.subspan(bytes);
  }
}

void UnitBytes::copy_part(const PageTables::PartOfPage& part) {
  std::vector<CopyPiece> copies;
  const CachePlan& plan = cache_.plan();
  for (size_t pool = 0; pool < plan.pools.size(); ++pool) {
    if (plan.pools[pool].group != part.group) continue;
    Pieces to, from;
    append_entries(to, pool, part.to, 0, part.entries);
    append_entries(from, pool, part.from, 0, part.entries);
    pair(to, from, copies);
  }
  runner_.copy(copies);
}

std::unique_ptr<Transfer> UnitBytes::copy_to_host(const PagePrefix& pages, std::byte* states,
                                                  int64_t first, const UnitPieces& unit) {
  std::vector<CopyPiece> copies;
  pair(unit.blocks, blocks(pages, first), copies);
  pair(unit.checkpoint, checkpoint(pages, states), copies);
  return runner_.start_copy(copies);
}

void UnitBytes::copy_to_cache(const PagePrefix& pages, std::byte* states, int64_t first,
                              const UnitPieces& unit) {
  std::vector<CopyPiece> copies;
  pair(blocks(pages, first), unit.blocks, copies);
  pair(checkpoint(pages, states), unit.checkpoint, copies);
  runner_.copy(copies);
}

}  // namespace dsv4
