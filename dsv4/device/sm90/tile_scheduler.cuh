// Work tiles of attention kernels: a query and a group of kTileHeads heads. The groups of a query
// have consecutive indices, so that CTAs that run together share its keys in L2.

#pragma once

#include <cstdint>

#include "dsv4/base/divisor.h"

namespace dsv4::sm90 {

struct QueryHeads {
  int request, query, first_head;  // query: of the request, below s_q
};

template <int kTileHeads>
__device__ QueryHeads locate_query_heads(const Divisor& head_groups, const Divisor& s_q,
                                         int index) {
  const uint32_t query = head_groups.divide(index);
  QueryHeads at;
  at.first_head = static_cast<int>(index - query * head_groups.divisor) * kTileHeads;
  at.request = static_cast<int>(s_q.divide(query));
  at.query = static_cast<int>(query - at.request * s_q.divisor);
  return at;
}

}  // namespace dsv4::sm90
