// Top k in three linear passes: order-preserving keys, radix selection of the k-th largest key, and
// a sweep in ascending index that selects all greater keys and the first of the equal ones.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/base/not_finite.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/ops/parts/indexer/indexer.h"

namespace dsv4::indexer_kernel::cpu {
namespace {

// The unsigned order of the keys is the order of the floats, with -0 = +0. `score` is not NaN.
uint32_t order_key(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

bool can_be_chosen(float score) {
  return score > -std::numeric_limits<float>::infinity();  // false for NaN
}

// The k-th largest of `keys` (k from 1), digit by digit. `keys` is reduced to the keys equal to it,
// and `k` to the number of them that belong to the k largest.
uint32_t select(std::vector<uint32_t>& keys, int64_t& k) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t count[256] = {};
    const auto digit = [shift](uint32_t key) { return (key >> shift) & 255u; };
    for (const uint32_t key : keys) ++count[digit(key)];
    uint32_t chosen = 255;
    while (count[chosen] < k) k -= count[chosen--];
    std::erase_if(keys, [&](uint32_t key) { return digit(key) != chosen; });
  }
  return keys.front();
}

// scores: [n], indices: [k]
void top_k_of_row(const float* scores, int64_t n, int32_t* indices, int64_t k,
                  std::vector<uint32_t>& keys) {
  keys.clear();
  for (int64_t s = 0; s < n; ++s) {
    if (can_be_chosen(scores[s])) keys.push_back(order_key(scores[s]));
  }
  const bool all = static_cast<int64_t>(keys.size()) <= k;
  int64_t equal_left = k;
  const uint32_t bound = all || k == 0 ? 0 : select(keys, equal_left);
  int64_t written = 0;
  for (int64_t s = 0; s < n && written < k; ++s) {
    if (!can_be_chosen(scores[s])) continue;
    const uint32_t key = order_key(scores[s]);
    const bool take = all || key > bound || (key == bound && equal_left-- > 0);
    if (take) indices[written++] = static_cast<int32_t>(s);
  }
  while (written < k) indices[written++] = -1;
}

// Converts entries to cache rows in place. indices: [k]
void to_rows(const int32_t* pages, int page_entries, int32_t* indices, int64_t k) {
  for (int64_t j = 0; j < k && indices[j] >= 0; ++j) {
    indices[j] = pages[indices[j] / page_entries] * page_entries + indices[j] % page_entries;
  }
}

void check_contents(const TopKArgs& args) {
  const int64_t n = args.scores.dim(1);
  for (int64_t i = 0; i < args.scores.dim(0); ++i) {
    const int64_t visible = args.visible.as<int32_t>()[i];
    DSV4_CHECK(0 <= visible && visible <= n, "visible[{}]={} of {} scores", i, visible, n);
    if (args.pages.empty()) continue;
    const int64_t sequence = args.sequence.as<int32_t>()[i];
    DSV4_CHECK(0 <= sequence && sequence < args.pages.dim(0), "sequence[{}]={} of {}", i, sequence,
               args.pages.dim(0));
    DSV4_CHECK(visible <= args.pages.dim(1) * args.page_entries, "visible[{}]={} on {} pages of {}",
               i, visible, args.pages.dim(1), args.page_entries);
  }
}

}  // namespace

// The keys of a row; a vector that grows holds up to three times its contents while it moves.
HostBytes host_bytes(const TopKArgs& args) {
  return {.per_thread = 3 * args.scores.dim(1) * static_cast<int64_t>(sizeof(uint32_t))};
}

void run(const Context&, const TopKArgs& args) {
  const int64_t queries = args.scores.dim(0), n = args.scores.dim(1), k = args.indices.dim(1);
  const int32_t* visible = args.visible.as<int32_t>();
  check_contents(args);
  int64_t bad_query = -1;
#pragma omp parallel if (queries > 1 && dsv4::cpu::worth_sharing(10 * queries * n))
  {
    std::vector<uint32_t> keys;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < queries; ++i) {
      int32_t* indices = args.indices.row<int32_t>(i);
      const float* scores = args.scores.row<float>(i);
      if (std::any_of(scores, scores + visible[i], [](float score) { return std::isnan(score); })) {
#pragma omp critical
        bad_query = i;
        continue;
      }
      top_k_of_row(scores, visible[i], indices, k, keys);
      if (args.pages.empty()) continue;
      to_rows(args.pages.row<int32_t>(args.sequence.as<int32_t>()[i]), args.page_entries, indices,
              k);
    }
  }
  if (bad_query >= 0)
    throw NotFinite(fmt::format("a score of query {} is nan: there is no top {}", bad_query, k));
}

}  // namespace dsv4::indexer_kernel::cpu
