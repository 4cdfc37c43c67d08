// Which bytes of a model's cache a unit holds (cache/unit_file.h), and their copies in both
// directions.
//
//   block of a step   the pages that it fills, of every pool of a group that keeps all entries
//   checkpoint        the pages at the end of the groups that drop old entries, and the
//                     compressors' rows that a checkpoint of prefix_cache.h keeps
//
// A page is contiguous, so a step of Flash takes 62 copies of 2 to 37 KB and a checkpoint 87.

#pragma once

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

  // Between the cache and host memory that the runner reaches. `pages`: of a text that is at least
  // as long as what is copied; `states`: the rows of its checkpoint, in the cache's memory. Each
  // returns when the bytes are there.
  void copy_to_host(const PagePrefix& pages, std::byte* states, int64_t first,
                    const UnitPieces& unit);
  void copy_to_cache(const PagePrefix& pages, std::byte* states, int64_t first,
                     const UnitPieces& unit);

 private:
  using Pieces = std::vector<std::span<std::byte>>;
  int64_t pages_of_step(const CacheGroup& group) const;
  int64_t kept_pages(const CacheGroup& group) const;
  void append_page(Pieces& pieces, size_t pool, int32_t page) const;
  // Of the tokens from `first` on, and at the end.
  Pieces blocks(const PagePrefix& pages, int64_t first) const;
  Pieces checkpoint(const PagePrefix& pages, std::byte* states) const;
  void copy(const Pieces& to, const Pieces& from);

  const ModelCache& cache_;
  Runner& runner_;
  int64_t state_bytes_;
  UnitLayout layout_;
};

}  // namespace dsv4
