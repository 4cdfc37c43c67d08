// Page tables of all sequences: lengths, tables and reference counts. This is bookkeeping on the
// host without the model and without memory; the memory of the pages is in pools.h.
//
//   group   entries that appear at one rate, so that one table per sequence serves all of them
//   table   page of entries p * page_entries ..., by logical page p; -1 once it was given back
//
// A sequence of n tokens has pages for entries 0 .. n / tokens_per_entry - 1. In a group with
// keep_tokens, pages that are wholly older go back as the sequence grows.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dsv4/cache/page_counts.h"

namespace dsv4 {

struct CacheGroup {
  int tokens_per_entry = 1;
  int page_entries = 64;
  int64_t num_pages = 0;
  int64_t keep_tokens = 0;  // 0: all; n: entries of the newest n tokens, the next one included
};

// Pages of a table that covers `tokens` tokens, and those among them that are not given back.
int64_t table_pages(const CacheGroup& group, int64_t tokens);
int64_t held_pages(const CacheGroup& group, int64_t tokens);

enum class SeqId : uint64_t {};  // a handle; the one of a closed sequence is never valid again

// The pages of a prefix of some sequence, kept alive by references of their own.
struct PagePrefix {
  int64_t tokens = 0;
  std::vector<std::vector<int32_t>> tables;  // [group][logical page]
};

class PageTables {
 public:
  // max_rollback: by how many tokens truncate() can shorten a sequence. The groups' keep_tokens and
  // the compressor states must have room for them.
  PageTables(std::span<const CacheGroup> groups, int max_sequences, int64_t max_rollback = 0);

  SeqId open();           // throws kResource when all slots are in use
  void close(SeqId seq);  // its slot and its references to pages go back
  int64_t num_open() const;

  // Makes room for tokens length .. length + count - 1. All or nothing: false means no page was
  // taken.
  [[nodiscard]] bool reserve(SeqId seq, int64_t count);
  // The reserved tokens are written: the sequence grows, pages before keep_tokens go back.
  void commit(SeqId seq, int64_t count);
  // Takes the sequence back to an earlier length: 0, or one at most max_rollback tokens shorter
  // that does not cut a shared prefix.
  void truncate(SeqId seq, int64_t length);

  // References to the pages of the first `tokens` tokens: whole entries in every group, whole pages
  // in those that drop old ones, and none may have been given back that a sequence of `tokens`
  // tokens needs. The sequence goes on to write the other entries of a page that they fill in part.
  PagePrefix hold(SeqId seq, int64_t tokens);
  void release(const PagePrefix& prefix);
  // The first entries of a page.
  struct PartOfPage {
    int group = 0;
    int32_t from = 0, to = 0;  // pages
    int64_t entries = 0;
  };
  // Lets an empty sequence begin with the prefix. It shares the pages that the prefix fills and
  // never writes them; of those that it fills in part it gets its own, to which the caller copies
  // these entries. Nothing: there is no free page, and the sequence is still empty.
  std::optional<std::vector<PartOfPage>> attach(SeqId seq, const PagePrefix& prefix);

  int64_t length(SeqId seq) const { return at(seq).length; }
  int32_t slot(SeqId seq) const;  // row of the state tensors, in [0, max_sequences)
  std::span<const int32_t> pages(SeqId seq, int group) const;
  std::span<const CacheGroup> groups() const { return groups_; }
  int64_t free_pages(int group) const { return counts_[static_cast<size_t>(group)].num_free(); }
  // Pages that only prefixes hold: they would be free if every prefix were released.
  int64_t idle_pages(int group) const { return idle_[static_cast<size_t>(group)]; }
  // Pages of a sequence that are in the table of none of `others`. Prefixes do not count.
  int64_t own_pages(SeqId seq, int group, std::span<const SeqId> others) const;
  // Throws unless every page has as many references as tables and prefixes name it; tests call it
  // after each operation.
  void check_invariants() const;

 private:
  struct Sequence {
    SeqId id{};
    bool open = false;
    int64_t length = 0;
    int64_t shared =
        0;  // the first so many tokens lie in pages that others may read: never rewritten
    std::vector<std::vector<int32_t>> tables;  // [group][logical page], -1 once given back
  };
  Sequence& at(SeqId seq);
  const Sequence& at(SeqId seq) const;
  void drop_old_pages(Sequence& sequence);
  // A reference of a table, to a page that has others or none.
  void share_page(size_t group, int32_t page);
  void give_page(size_t group, int32_t page);
  bool is_idle(size_t group, int32_t page) const;

  std::vector<CacheGroup> groups_;
  int64_t max_rollback_;
  std::vector<PageCounts> counts_;             // [group]
  std::vector<std::vector<int32_t>> held_by_;  // [group][page] prefixes that hold it
  std::vector<int64_t> idle_;                  // [group]
  std::vector<Sequence> sequences_;
  uint64_t num_opened_ = 0;
};

}  // namespace dsv4
