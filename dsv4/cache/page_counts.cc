#include "dsv4/cache/page_counts.h"

#include "dsv4/base/error.h"

namespace dsv4 {

PageCounts::PageCounts(int64_t num_pages) : counts_(static_cast<size_t>(num_pages), 0) {
  free_.reserve(static_cast<size_t>(num_pages));
  for (int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int32_t PageCounts::take() {
  if (free_.empty()) fail(ErrorCode::kResource, "no free page among {}", num_pages());
  const int32_t page = free_.back();
  free_.pop_back();
  counts_[static_cast<size_t>(page)] = 1;
  return page;
}

void PageCounts::check_taken(int32_t page) const {
  DSV4_CHECK(page >= 0 && page < num_pages() && count(page) > 0, "page {} of {} is not taken", page,
             num_pages());
}

void PageCounts::share(int32_t page) {
  check_taken(page);
  ++counts_[static_cast<size_t>(page)];
}

void PageCounts::give(int32_t page) {
  check_taken(page);
  if (--counts_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

}  // namespace dsv4
