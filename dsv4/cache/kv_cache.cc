#include "dsv4/cache/kv_cache.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {

int64_t CachePlan::bytes() const {
  int64_t total = 0;
  for (const Pool& pool : pools) {
    total += groups[static_cast<size_t>(pool.group)].num_pages * pool.page_items *
             item_bytes(pool.dtype);
  }
  for (const StateLayout& state : states) {
    total += max_sequences * state.floats() * static_cast<int64_t>(sizeof(float));
  }
  return total;
}

KvCache::KvCache(const CachePlan& plan, Memory& memory)
    : plan_(plan), sequences_(static_cast<size_t>(plan.max_sequences)) {
  for (const CachePlan::Group& group : plan_.groups) free_.emplace_back(group.num_pages);
  for (const CachePlan::Pool& pool : plan_.pools) {
    const int64_t num_pages = plan_.groups[static_cast<size_t>(pool.group)].num_pages;
    pools_.emplace_back(pool.dtype, std::initializer_list<int64_t>{num_pages, pool.page_items},
                        memory);
  }
  for (const StateLayout& state : plan_.states) {
    states_.emplace_back(
        DType::kF32, std::initializer_list<int64_t>{plan_.max_sequences, state.floats()}, memory);
  }
}

KvCache::Sequence& KvCache::at(SeqId seq) {
  return const_cast<Sequence&>(std::as_const(*this).at(seq));
}

const KvCache::Sequence& KvCache::at(SeqId seq) const {
  const auto i = static_cast<size_t>(seq);
  DSV4_CHECK(i < sequences_.size() && sequences_[i].open, "sequence {} is not open", i);
  return sequences_[i];
}

SeqId KvCache::open() {
  const auto slot =
      std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.open; });
  if (slot == sequences_.end())
    fail(ErrorCode::kResource, "all {} sequence slots are in use", sequences_.size());
  *slot = {
      .open = true, .length = 0, .tables = std::vector<std::vector<int32_t>>(plan_.groups.size())};
  return static_cast<SeqId>(slot - sequences_.begin());
}

void KvCache::close(SeqId seq) {
  Sequence& sequence = at(seq);
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    for (const int32_t page : sequence.tables[g]) {
      if (page >= 0) free_[g].give(page);
    }
  }
  sequence = {};
}

int64_t KvCache::num_open() const {
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [](const Sequence& s) { return s.open; });
}

int64_t KvCache::pages_for(const CachePlan::Group& group, int64_t tokens) const {
  return ceil_div(tokens / group.tokens_per_entry, group.page_entries);
}

bool KvCache::reserve(SeqId seq, int64_t count) {
  Sequence& sequence = at(seq);
  std::vector<int64_t> missing(plan_.groups.size());
  for (size_t g = 0; g < missing.size(); ++g) {
    const int64_t want = pages_for(plan_.groups[g], sequence.length + count);
    missing[g] = std::max<int64_t>(0, want - static_cast<int64_t>(sequence.tables[g].size()));
    if (missing[g] > free_[g].num_free()) return false;
  }
  for (size_t g = 0; g < missing.size(); ++g) {
    for (int64_t i = 0; i < missing[g]; ++i) sequence.tables[g].push_back(free_[g].take());
  }
  return true;
}

void KvCache::commit(SeqId seq, int64_t count) {
  Sequence& sequence = at(seq);
  sequence.length += count;
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    const CachePlan::Group& group = plan_.groups[g];
    const auto have = static_cast<int64_t>(sequence.tables[g].size());
    DSV4_CHECK(pages_for(group, sequence.length) <= have, "{} tokens committed without room",
               count);
    if (group.keep_tokens == 0) continue;
    // The next token sees itself and keep_tokens - 1 before it.
    const int64_t oldest = std::max<int64_t>(0, sequence.length - group.keep_tokens + 1);
    for (int64_t p = oldest / group.tokens_per_entry / group.page_entries; p-- > 0;) {
      int32_t& page = sequence.tables[g][static_cast<size_t>(p)];
      if (page < 0) break;  // everything before was given back earlier
      free_[g].give(page);
      page = -1;
    }
  }
}

int64_t KvCache::length(SeqId seq) const {
  return at(seq).length;
}

std::span<const int32_t> KvCache::pages(SeqId seq, int group) const {
  return at(seq).tables[static_cast<size_t>(group)];
}

void KvCache::check_invariants() const {
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    std::vector<bool> owned(static_cast<size_t>(plan_.groups[g].num_pages), false);
    int64_t count = 0;
    for (const Sequence& sequence : sequences_) {
      if (!sequence.open) continue;
      for (const int32_t page : sequence.tables[g]) {
        if (page < 0) continue;
        DSV4_CHECK(!owned[static_cast<size_t>(page)], "page {} of group {} has two owners", page,
                   g);
        owned[static_cast<size_t>(page)] = true;
        ++count;
      }
    }
    DSV4_CHECK(count + free_[g].num_free() == free_[g].num_pages(),
               "group {}: {} owned, {} free of {}", g, count, free_[g].num_free(),
               free_[g].num_pages());
  }
}

}  // namespace dsv4
