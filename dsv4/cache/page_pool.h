// Free list of equal pages, by number. Who holds which page is the caller's business.

#pragma once

#include <cstdint>
#include <vector>

namespace dsv4 {

class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_pages() const { return static_cast<int64_t>(taken_.size()); }
  int32_t take();           // throws kResource when empty
  void give(int32_t page);  // throws when the page was not taken

 private:
  std::vector<int32_t> free_;  // a stack: the page given back last is taken first, still warm
  std::vector<bool> taken_;
};

}  // namespace dsv4
