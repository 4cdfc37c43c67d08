// Reference counts of equal pages, by number. A page without references is free.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsv4 {

class PageCounts {
 public:
  explicit PageCounts(int64_t num_pages);

  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_pages() const { return static_cast<int64_t>(counts_.size()); }
  int32_t count(int32_t page) const { return counts_[static_cast<size_t>(page)]; }

  int32_t take();            // a free page, with one reference; throws kResource when there is none
  void share(int32_t page);  // one reference more; throws when the page is free
  void give(int32_t page);   // one reference less; throws when the page is free

 private:
  void check_taken(int32_t page) const;

  std::vector<int32_t> free_;  // a stack: the page given back last is taken first, still warm
  std::vector<int32_t> counts_;
};

}  // namespace dsv4
