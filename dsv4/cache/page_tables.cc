#include "dsv4/cache/page_tables.h"

#include <algorithm>
#include <utility>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr uint64_t kSlotBits =
    20;  // of a handle; above them a count of the sequences opened so far

// First page that a sequence of `tokens` tokens still needs: its next token sees itself and
// keep_tokens - 1 before it.
int64_t first_page(const CacheGroup& group, int64_t tokens) {
  if (group.keep_tokens == 0) return 0;
  const int64_t oldest = std::max<int64_t>(0, tokens - group.keep_tokens + 1);
  return oldest / group.tokens_per_entry / group.page_entries;
}

}  // namespace

int64_t table_pages(const CacheGroup& group, int64_t tokens) {
  return ceil_div(tokens / group.tokens_per_entry, group.page_entries);
}

int64_t held_pages(const CacheGroup& group, int64_t tokens) {
  return std::max<int64_t>(0, table_pages(group, tokens) - first_page(group, tokens));
}

PageTables::PageTables(std::span<const CacheGroup> groups, int max_sequences, int64_t max_rollback)
    : groups_(groups.begin(), groups.end()),
      max_rollback_(max_rollback),
      sequences_(static_cast<size_t>(max_sequences)) {
  DSV4_CHECK(max_sequences < (1 << kSlotBits), "max_sequences={}", max_sequences);
  for (const CacheGroup& group : groups_) {
    counts_.emplace_back(group.num_pages);
    held_by_.emplace_back(static_cast<size_t>(group.num_pages), 0);
  }
  idle_.resize(groups_.size());
}

bool PageTables::is_idle(size_t group, int32_t page) const {
  const int32_t held = held_by_[group][static_cast<size_t>(page)];
  return held > 0 && counts_[group].count(page) == held;
}

void PageTables::share_page(size_t group, int32_t page) {
  idle_[group] -= is_idle(group, page) ? 1 : 0;
  counts_[group].share(page);
}

void PageTables::give_page(size_t group, int32_t page) {
  counts_[group].give(page);
  idle_[group] += is_idle(group, page) ? 1 : 0;
}

PageTables::Sequence& PageTables::at(SeqId seq) {
  return const_cast<Sequence&>(std::as_const(*this).at(seq));
}

const PageTables::Sequence& PageTables::at(SeqId seq) const {
  const size_t slot = static_cast<uint64_t>(seq) & ((uint64_t{1} << kSlotBits) - 1);
  DSV4_CHECK(slot < sequences_.size() && sequences_[slot].open && sequences_[slot].id == seq,
             "sequence {:#x} is not open", static_cast<uint64_t>(seq));
  return sequences_[slot];
}

int32_t PageTables::slot(SeqId seq) const {
  return static_cast<int32_t>(&at(seq) - sequences_.data());
}

SeqId PageTables::open() {
  const auto free =
      std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.open; });
  if (free == sequences_.end())
    fail(ErrorCode::kResource, "all {} sequence slots are in use", sequences_.size());
  const auto slot = static_cast<uint64_t>(free - sequences_.begin());
  *free = {.id = static_cast<SeqId>(++num_opened_ << kSlotBits | slot),
           .open = true,
           .tables = std::vector<std::vector<int32_t>>(groups_.size())};
  return free->id;
}

void PageTables::close(SeqId seq) {
  truncate(seq, 0);
  at(seq) = {};
}

int64_t PageTables::num_open() const {
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [](const Sequence& s) { return s.open; });
}

bool PageTables::reserve(SeqId seq, int64_t count) {
  Sequence& sequence = at(seq);
  std::vector<int64_t> missing(groups_.size());
  for (size_t g = 0; g < missing.size(); ++g) {
    const int64_t want = table_pages(groups_[g], sequence.length + count);
    missing[g] = std::max<int64_t>(0, want - static_cast<int64_t>(sequence.tables[g].size()));
    if (missing[g] > counts_[g].num_free()) return false;
  }
  for (size_t g = 0; g < missing.size(); ++g) {
    for (int64_t i = 0; i < missing[g]; ++i) sequence.tables[g].push_back(counts_[g].take());
  }
  return true;
}

void PageTables::drop_old_pages(Sequence& sequence) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int64_t p = first_page(groups_[g], sequence.length); p-- > 0;) {
      int32_t& page = sequence.tables[g][static_cast<size_t>(p)];
      if (page < 0) break;  // everything before was given back earlier
      give_page(g, page);
      page = -1;
    }
  }
}

void PageTables::commit(SeqId seq, int64_t count) {
  Sequence& sequence = at(seq);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto have = static_cast<int64_t>(sequence.tables[g].size());
    DSV4_CHECK(table_pages(groups_[g], sequence.length + count) <= have,
               "{} tokens committed without room", count);
  }
  sequence.length += count;
  drop_old_pages(sequence);
}

void PageTables::truncate(SeqId seq, int64_t length) {
  Sequence& sequence = at(seq);
  const bool near = length >= sequence.shared && sequence.length - length <= max_rollback_;
  DSV4_CHECK(length == 0 || (length > 0 && length <= sequence.length && near),
             "a sequence of {} tokens, {} of them shared, cannot go back to {} (by at most {})",
             sequence.length, sequence.shared, length, max_rollback_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int32_t>& table = sequence.tables[g];
    const auto keep = static_cast<size_t>(table_pages(groups_[g], length));
    for (; table.size() > keep; table.pop_back()) {
      if (table.back() >= 0) give_page(g, table.back());
    }
  }
  sequence.length = length;
  sequence.shared = std::min(sequence.shared, length);
}

PagePrefix PageTables::hold(SeqId seq, int64_t tokens) {
  Sequence& sequence = at(seq);
  DSV4_CHECK(tokens > 0 && tokens <= sequence.length, "a prefix of {} tokens out of {}", tokens,
             sequence.length);
  PagePrefix prefix{.tokens = tokens};
  for (size_t g = 0; g < groups_.size(); ++g) {
    const CacheGroup& group = groups_[g];
    const int64_t whole =
        int64_t{group.tokens_per_entry} * (group.keep_tokens > 0 ? group.page_entries : 1);
    DSV4_CHECK(tokens % whole == 0, "a prefix of {} tokens in steps of {}", tokens, whole);
    const auto first = static_cast<size_t>(first_page(group, tokens)),
               end = static_cast<size_t>(table_pages(group, tokens));
    std::vector<int32_t>& table = prefix.tables.emplace_back(end, -1);
    std::copy(sequence.tables[g].begin() + static_cast<std::ptrdiff_t>(first),
              sequence.tables[g].begin() + static_cast<std::ptrdiff_t>(end),
              table.begin() + static_cast<std::ptrdiff_t>(first));
    DSV4_CHECK(std::find(table.begin() + static_cast<std::ptrdiff_t>(first), table.end(), -1) ==
                   table.end(),
               "pages of a prefix of {} tokens were given back", tokens);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const int32_t page : prefix.tables[g]) {
      if (page < 0) continue;
      counts_[g].share(page);
      ++held_by_[g][static_cast<size_t>(page)];
    }
  }
  sequence.shared = std::max(sequence.shared, tokens);
  return prefix;
}

void PageTables::release(const PagePrefix& prefix) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const int32_t page : prefix.tables[g]) {
      if (page < 0) continue;
      DSV4_CHECK(held_by_[g][static_cast<size_t>(page)] > 0, "page {} of group {} is not held",
                 page, g);
      const bool idle = is_idle(g, page);
      --held_by_[g][static_cast<size_t>(page)];
      counts_[g].give(page);
      idle_[g] -= idle && counts_[g].count(page) == 0 ? 1 : 0;
    }
  }
}

std::optional<std::vector<PageTables::PartOfPage>> PageTables::attach(SeqId seq,
                                                                      const PagePrefix& prefix) {
  Sequence& sequence = at(seq);
  DSV4_CHECK(sequence.length == 0, "a sequence of {} tokens cannot begin with a prefix",
             sequence.length);
  truncate(seq, 0);  // pages that were reserved
  std::vector<PartOfPage> parts;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t entries = prefix.tokens / groups_[g].tokens_per_entry % groups_[g].page_entries;
    if (entries == 0) continue;
    if (counts_[g].num_free() == 0) return std::nullopt;
    parts.push_back(
        {.group = static_cast<int>(g), .from = prefix.tables[g].back(), .entries = entries});
  }
  sequence.tables = prefix.tables;
  for (PartOfPage& part : parts) {
    const auto g = static_cast<size_t>(part.group);
    part.to = counts_[g].take();
    sequence.tables[g].back() = part.to;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t p = 0; p < prefix.tables[g].size(); ++p) {
      const int32_t page = prefix.tables[g][p];
      if (page >= 0 && page == sequence.tables[g][p]) share_page(g, page);
    }
  }
  sequence.length = sequence.shared = prefix.tokens;
  return parts;
}

std::span<const int32_t> PageTables::pages(SeqId seq, int group) const {
  return at(seq).tables[static_cast<size_t>(group)];
}

// Sequences share pages of common prefixes only, so a shared page has one place in all tables.
int64_t PageTables::own_pages(SeqId seq, int group, std::span<const SeqId> others) const {
  const auto g = static_cast<size_t>(group);
  const std::vector<int32_t>& table = at(seq).tables[g];
  const auto has = [&](SeqId other, size_t p) {
    const std::vector<int32_t>& theirs = at(other).tables[g];
    return p < theirs.size() && theirs[p] == table[p];
  };
  int64_t own = 0;
  for (size_t p = 0; p < table.size(); ++p) {
    if (table[p] < 0) continue;
    const bool shared = counts_[g].count(table[p]) > held_by_[g][static_cast<size_t>(table[p])] + 1;
    own += !shared || std::ranges::none_of(others, [&](SeqId other) { return has(other, p); });
  }
  return own;
}

void PageTables::check_invariants() const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int32_t> references = held_by_[g];
    for (const Sequence& sequence : sequences_) {
      if (!sequence.open) continue;
      std::vector<bool> own(references.size(), false);
      for (const int32_t page : sequence.tables[g]) {
        if (page < 0) continue;
        DSV4_CHECK(!own[static_cast<size_t>(page)], "page {} of group {} is in a table twice", page,
                   g);
        own[static_cast<size_t>(page)] = true;
        ++references[static_cast<size_t>(page)];
      }
    }
    int64_t free = 0, idle = 0;
    for (size_t page = 0; page < references.size(); ++page) {
      const int32_t counted = counts_[g].count(static_cast<int32_t>(page));
      DSV4_CHECK(counted == references[page], "page {} of group {}: {} references, {} counted",
                 page, g, references[page], counted);
      free += counted == 0 ? 1 : 0;
      idle += is_idle(g, static_cast<int32_t>(page)) ? 1 : 0;
    }
    DSV4_CHECK(free == counts_[g].num_free(), "group {}: {} pages without references, {} free", g,
               free, counts_[g].num_free());
    DSV4_CHECK(idle == idle_[g], "group {}: {} pages only in prefixes, {} counted", g, idle,
               idle_[g]);
  }
}

}  // namespace dsv4
