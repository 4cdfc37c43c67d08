#include "dsv4/text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

constexpr int32_t kMerged = -1;  // the id of a symbol that was merged into its left neighbor

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::span<const Merge> merges) {
  const size_t size = std::bit_ceil(2 * merges.size() + 2);
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
  for (size_t i = 0; i < merges.size(); ++i) {
    const uint64_t pair = pair_of(merges[i].left, merges[i].right);
    size_t at = home(pair);
    while (slots_[at].rank >= 0) at = (at + 1) & (size - 1);
    slots_[at] = {pair, static_cast<int32_t>(i)};
  }
}

size_t MergeTable::home(uint64_t pair) const {
  return mix64(pair) >> shift_;
}

int32_t MergeTable::rank(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  size_t at = home(pair);
  while (slots_[at].rank >= 0 && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return slots_[at].rank;
}

Bpe::Bpe(std::vector<Merge> merges, const std::array<int32_t, 256>& byte_ids)
    : merges_(std::move(merges)), byte_ids_(byte_ids), table_(merges_) {
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  auto& symbols = scratch.symbols_;
  symbols.clear();
  const auto size = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])];
    symbols.push_back({id, i - 1, i + 1 == size ? -1 : i + 1});
  }
  merge_all(scratch);
  for (const auto& symbol : symbols) {
    if (symbol.id != kMerged) ids.push_back(symbol.id);
  }
}

// Queues the merge of the symbol at `left` with its right neighbor, if there is one.
void Bpe::offer(int32_t left, Scratch& scratch) const {
  const auto& symbol = scratch.symbols_[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const int32_t rank =
      table_.rank(symbol.id, scratch.symbols_[static_cast<size_t>(symbol.next)].id);
  if (rank < 0) return;
  scratch.queue_.push_back(pair_of(rank, left));
  std::push_heap(scratch.queue_.begin(), scratch.queue_.end(), std::greater<>());
}

void Bpe::merge_all(Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  auto& queue = scratch.queue_;
  queue.clear();
  for (size_t i = 0; i < symbols.size(); ++i) offer(static_cast<int32_t>(i), scratch);
  while (!queue.empty()) {
    const uint64_t top = queue.front();
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    queue.pop_back();
    const Merge& merge = merges_[top >> 32];
    const auto at = static_cast<int32_t>(top & UINT32_MAX);
    auto& left = symbols[static_cast<size_t>(at)];
    // An entry is stale once either of its two symbols has been merged elsewhere.
    if (left.id != merge.left || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != merge.right) continue;
    left.id = merge.result;
    left.next = right.next;
    right.id = kMerged;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = at;
    offer(at, scratch);
    if (left.prev >= 0) offer(left.prev, scratch);
  }
}

}  // namespace dsv4
