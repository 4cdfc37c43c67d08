#include "dsv4/cache/page_pool.h"

#include "dsv4/base/error.h"

namespace dsv4 {

PagePool::PagePool(int64_t num_pages) : taken_(static_cast<size_t>(num_pages), false) {
  free_.reserve(static_cast<size_t>(num_pages));
  for (int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int32_t PagePool::take() {
  if (free_.empty()) fail(ErrorCode::kResource, "no free page among {}", num_pages());
  const int32_t page = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(page)] = true;
  return page;
}

void PagePool::give(int32_t page) {
  DSV4_CHECK(page >= 0 && page < num_pages() && taken_[static_cast<size_t>(page)],
             "page {} of {} is not taken", page, num_pages());
  taken_[static_cast<size_t>(page)] = false;
  free_.push_back(page);
}

}  // namespace dsv4
