#include "dsv4/cache/pools.h"

namespace dsv4 {

int64_t CachePlan::pages(const Pool& pool) const {
  return groups[static_cast<size_t>(pool.group)].num_pages + max_sequences * pool.own_pages;
}

int64_t CachePlan::bytes() const {
  int64_t total = 0;
  for (const Pool& pool : pools) total += pages(pool) * pool.page_items * item_bytes(pool.dtype);
  for (const StateLayout& state : states)
    total += max_sequences * state.floats() * static_cast<int64_t>(sizeof(float));
  total += max_sequences * streams_bytes;
  return total;
}

CachePools::CachePools(const CachePlan& plan, Memory& memory) {
  using Shape = std::initializer_list<int64_t>;
  for (const CachePlan::Pool& pool : plan.pools)
    pools_.emplace_back(pool.dtype, Shape{plan.pages(pool), pool.page_items}, memory);
  for (const StateLayout& state : plan.states)
    states_.emplace_back(DType::kF32, Shape{plan.max_sequences, state.floats()}, memory);
  if (plan.streams_bytes > 0)
    streams_ = Buffer(DType::kU8, Shape{plan.max_sequences, plan.streams_bytes}, memory);
}

}  // namespace dsv4
