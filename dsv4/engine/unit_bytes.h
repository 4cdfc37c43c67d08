// Which bytes of a model's cache a unit holds (cache/unit_file.h), and their copies in both
// directions.
//
//   block of a step   its entries and their scales, of every pool of a group that keeps all entries
//   checkpoint        the pages at the end of the groups that drop old entries, and the
//                     compressors' rows that a checkpoint of prefix_cache.h keeps
//
// A step fills pages in part, so for Flash it takes 124 copies of 8 bytes to 18 KB.

#pragma once

#include <memory>
#include <vector>

#include "dsv4/cache/unit_store.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/engine/runner.h"

namespace dsv4 {

class UnitBytes {
 public:
  // state_bytes: of the rows of one checkpoint
  UnitBytes(const ModelCache& cache, Runner& runner, int64_t step, int64_t state_bytes);

  const UnitLayout& layout() const { return layout_; }

  // To `part.to`, the first entries of the page `part.from`.
  void copy_part(const PageTables::PartOfPage& part);

  // Between the cache and host memory that the runner reaches. `pages`: of a text that is at least
  // as long as what is copied; `states`: the rows of its checkpoint, in the cache's memory. To the
  // host beside the steps, to the cache in order with them.
  std::unique_ptr<Transfer> copy_to_host(const PagePrefix& pages, std::byte* states, int64_t first,
                                         const UnitPieces& unit);
  void copy_to_cache(const PagePrefix& pages, std::byte* states, int64_t first,
                     const UnitPieces& unit);

 private:
  using Pieces = std::vector<std::span<std::byte>>;
  int64_t entries_of_step(const CacheGroup& group) const;
  int64_t kept_pages(const CacheGroup& group) const;
  std::span<std::byte> page_bytes(size_t pool, int32_t page) const;
  // `count` entries of a page from `first` on, and their scales.
  void append_entries(Pieces& pieces, size_t pool, int32_t page, int64_t first,
                      int64_t count) const;
  // Blocks of the tokens from `first` on, and the checkpoint at their end.
  Pieces blocks(const PagePrefix& pages, int64_t first) const;
  Pieces checkpoint(const PagePrefix& pages, std::byte* states) const;
  static void pair(const Pieces& to, const Pieces& from, std::vector<CopyPiece>& copies);

  const ModelCache& cache_;
  Runner& runner_;
  int64_t state_bytes_;
  UnitLayout layout_;
};

}  // namespace dsv4
