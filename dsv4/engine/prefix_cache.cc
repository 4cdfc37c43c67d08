#include "dsv4/engine/prefix_cache.h"

#include <algorithm>
#include <numeric>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kStateBytes = sizeof(float);

}  // namespace

int64_t prefix_step(std::span<const CacheGroup> groups) {
  int64_t step = 1;
  for (const CacheGroup& group : groups)
    step = std::lcm(step, int64_t{group.tokens_per_entry} * group.page_entries);
  return step;
}

int64_t prefix_state_bytes(std::span<const StateLayout> states) {
  int64_t bytes = 0;
  for (const StateLayout& state : states)
    if (state.overlap) bytes += 2 * int64_t{state.ratio} * state.columns() * kStateBytes;
  return bytes;
}

PrefixCache::PrefixCache(ModelCache& cache, Runner& runner)
    : cache_(cache),
      runner_(runner),
      index_(prefix_step(cache.tables().groups())),
      checkpoints_(static_cast<size_t>(cache.limits().checkpoints)),
      states_(DType::kU8, {cache.limits().checkpoints, prefix_state_bytes(cache.plan().states)},
              runner.memory()) {
  for (size_t place = checkpoints_.size(); place-- > 0;) free_.push_back(static_cast<int>(place));
}

// The rows of tokens - ratio .. tokens - 1 may wrap around the end of the ring.
std::vector<PrefixCache::Rows> PrefixCache::rows_of(int64_t slot, int64_t tokens) const {
  std::vector<Rows> all;
  int64_t kept = 0;
  const std::vector<StateLayout>& states = cache_.plan().states;
  for (size_t i = 0; i < states.size(); ++i) {
    const StateLayout& state = states[i];
    if (!state.overlap) continue;
    const int64_t row_bytes = state.columns() * kStateBytes;
    for (int plane = 0; plane < 2; ++plane) {
      std::byte* ring = cache_.pools().state(static_cast<int>(i)).data +
                        (slot * state.floats() + plane * state.plane()) * kStateBytes;
      for (int64_t t = tokens - state.ratio; t < tokens;) {
        const int row = state.row_of(t);
        const int64_t count = std::min<int64_t>(tokens - t, state.rows() - row);
        all.push_back({.data = ring + row * row_bytes, .kept = kept, .bytes = count * row_bytes});
        kept += count * row_bytes;
        t += count;
      }
    }
  }
  return all;
}

void PrefixCache::use(int place) {
  Checkpoint& checkpoint = checkpoints_[static_cast<size_t>(place)];
  by_use_.erase(checkpoint.last_use);
  checkpoint.last_use = ++num_uses_;
  by_use_.emplace(checkpoint.last_use, place);
}

int64_t PrefixCache::match(std::string_view salt, std::span<const int32_t> ids) const {
  const auto match = index_.find(salt, ids);
  return match ? match->tokens : 0;
}

int64_t PrefixCache::attach(SeqId seq, std::string_view salt, std::span<const int32_t> ids) {
  const auto match = index_.find(salt, ids);
  if (!match) return 0;
  PageTables& tables = cache_.tables();
  tables.attach(seq, checkpoints_[static_cast<size_t>(match->checkpoint)].pages);
  const std::byte* kept = states_.view().row<std::byte>(match->checkpoint);
  for (const Rows& rows : rows_of(tables.slot(seq), match->tokens))
    runner_.copy(rows.data, kept + rows.kept, rows.bytes);
  use(match->checkpoint);
  return match->tokens;
}

void PrefixCache::store(SeqId seq, std::string_view salt, std::span<const int32_t> ids) {
  PageTables& tables = cache_.tables();
  const auto tokens = static_cast<int64_t>(ids.size());
  DSV4_CHECK(tables.length(seq) == tokens, "a checkpoint of {} tokens of a sequence of {}", tokens,
             tables.length(seq));
  if (checkpoints_.empty()) return;
  const auto match = index_.find(salt, ids);
  if (match && match->tokens == tokens) return use(match->checkpoint);
  if (free_.empty()) evict();
  const int place = free_.back();
  free_.pop_back();
  index_.insert(salt, ids, place);
  checkpoints_[static_cast<size_t>(place)].pages = tables.hold(seq, tokens);
  std::byte* kept = states_.view().row<std::byte>(place);
  for (const Rows& rows : rows_of(tables.slot(seq), tokens))
    runner_.copy(kept + rows.kept, rows.data, rows.bytes);
  use(place);
}

bool PrefixCache::evict() {
  if (by_use_.empty()) return false;
  const int place = by_use_.begin()->second;
  by_use_.erase(by_use_.begin());
  Checkpoint& checkpoint = checkpoints_[static_cast<size_t>(place)];
  index_.erase(place);
  cache_.tables().release(checkpoint.pages);
  checkpoint = {};
  free_.push_back(place);
  return true;
}

}  // namespace dsv4
