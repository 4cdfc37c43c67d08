#include "dsv4/engine/prefix_cache.h"

#include <algorithm>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kStateBytes = sizeof(float);

}  // namespace

int64_t prefix_state_bytes(const CachePlan& plan) {
  int64_t bytes = plan.streams_bytes;
  for (const StateLayout& state : plan.states)
    if (state.overlap) bytes += 2 * int64_t{state.ratio} * state.columns() * kStateBytes;
  return bytes;
}

PrefixCache::PrefixCache(ModelCache& cache, Runner& runner)
    : cache_(cache),
      runner_(runner),
      index_(checkpoint_step(cache.tables().groups())),
      checkpoints_(static_cast<size_t>(cache.limits().checkpoints)),
      states_(DType::kU8, {cache.limits().checkpoints, prefix_state_bytes(cache.plan())},
              runner.memory()),
      bytes_(cache, runner, step(), prefix_state_bytes(cache.plan())) {
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
  if (const int64_t bytes = cache_.plan().streams_bytes; bytes > 0)
    all.push_back(
        {.data = cache_.pools().streams().data + slot * bytes, .kept = kept, .bytes = bytes});
  return all;
}

void PrefixCache::use(int place) {
  Checkpoint& checkpoint = checkpoints_[static_cast<size_t>(place)];
  by_use_.erase(checkpoint.last_use);
  checkpoint.last_use = ++num_uses_;
  by_use_.emplace(checkpoint.last_use, place);
}

PrefixCache::Match PrefixCache::match(std::string_view salt, std::span<const int32_t> ids) const {
  const PrefixIndex::Match match = index_.find(salt, ids);
  return {.tokens = match.tokens, .common = match.common};
}

void PrefixCache::open_tiers(const UnitStoreOptions& options, const Digest& fingerprint) {
  units_ = std::make_unique<UnitStore>(options, bytes_.layout(), fingerprint, runner_.staging());
}

// From a checkpoint to the sequence's slot.
void PrefixCache::fill_states(SeqId seq, int place) {
  const PageTables& tables = cache_.tables();
  std::vector<CopyPiece> copies;
  for (const Rows& rows : rows_of(tables.slot(seq), tables.length(seq)))
    copies.push_back({rows.data, states_of(place) + rows.kept, rows.bytes});
  runner_.copy(copies);
}

// The sequence begins with the checkpoint's pages. Where there is no page for entries that it must
// copy, other checkpoints are given up; false: there is none either.
bool PrefixCache::share_pages(SeqId seq, int place) {
  for (;;) {
    const auto parts = cache_.tables().attach(seq, checkpoints_[static_cast<size_t>(place)].pages);
    if (parts) {
      for (const PageTables::PartOfPage& part : *parts) bytes_.copy_part(part);
      return true;
    }
    if (by_use_.size() < 2) return false;
    evict();  // the least recently used, which is not this one
  }
}

PrefixCache::Attached PrefixCache::attach(SeqId seq, std::string_view salt,
                                          std::span<const int32_t> ids, UnitStore::Lease* lease) {
  const PrefixIndex::Match match = index_.find(salt, ids);
  if (match.tokens > 0) use(match.checkpoint);
  const bool shared = match.tokens > 0 && share_pages(seq, match.checkpoint);
  const int64_t have = shared ? match.tokens : 0;
  const bool longer = lease != nullptr && lease->tokens() > have &&
                      lease->state() == UnitStore::Lease::State::kReady;
  if (longer) {
    if (!load(seq, salt, have, *lease)) return {};
    const int64_t loaded = lease->tokens() - have;
    return {lease->tokens(), lease->from_disk() ? 0 : loaded, lease->from_disk() ? loaded : 0};
  }
  if (shared) fill_states(seq, match.checkpoint);
  return {.tokens = have};
}

// Takes the pages of the next tokens, which are then written by copies. A piece at a time, because
// the window's pages of a piece go back with the next one.
bool PrefixCache::grow(SeqId seq, int64_t tokens) {
  PageTables& tables = cache_.tables();
  while (tables.length(seq) < tokens) {
    const int64_t count = std::min(cache_.limits().max_batch_tokens, tokens - tables.length(seq));
    while (!tables.reserve(seq, count)) {
      if (!evict()) return false;
    }
    tables.commit(seq, count);
  }
  return true;
}

// Makes a checkpoint of the lease's text and begins the sequence with it. It has `have` tokens, of
// an engine's checkpoint. False: there are no pages, and the sequence is empty.
bool PrefixCache::load(SeqId seq, std::string_view salt, int64_t have, UnitStore::Lease& lease) {
  PageTables& tables = cache_.tables();
  const std::span<const int32_t> ids = lease.ids();
  if (!grow(seq, lease.tokens())) {
    tables.truncate(seq, 0);
    return false;
  }
  const CheckpointId id = store(seq, salt, ids);
  const int place = places_.at(id);
  std::vector<std::span<std::byte>> blocks = lease.blocks();
  blocks.erase(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(have / step()));
  bytes_.copy_to_cache(checkpoints_[static_cast<size_t>(place)].pages, states_of(place), have,
                       {.blocks = std::move(blocks), .checkpoint = lease.checkpoint()});
  fill_states(seq, place);
  return true;
}

int PrefixCache::take_place() {
  if (free_.empty()) evict();
  const int place = free_.back();
  free_.pop_back();
  return place;
}

CheckpointId PrefixCache::store(SeqId seq, std::string_view salt, std::span<const int32_t> ids) {
  PageTables& tables = cache_.tables();
  const auto tokens = static_cast<int64_t>(ids.size());
  DSV4_CHECK(tables.length(seq) == tokens, "a checkpoint of {} tokens of a sequence of {}", tokens,
             tables.length(seq));
  const PrefixIndex::Match match = index_.find(salt, ids);
  if (match.tokens == tokens) {
    use(match.checkpoint);
    return CheckpointId::kNone;
  }
  const int place = take_place();
  Checkpoint& checkpoint = checkpoints_[static_cast<size_t>(place)];
  index_.insert(salt, ids, place);
  checkpoint.id = static_cast<CheckpointId>(++num_stored_);
  places_[checkpoint.id] = place;
  checkpoint.pages = tables.hold(seq, tokens);
  std::vector<CopyPiece> copies;
  for (const Rows& rows : rows_of(tables.slot(seq), tokens))
    copies.push_back({states_of(place) + rows.kept, rows.data, rows.bytes});
  runner_.copy(copies);
  use(place);
  return checkpoint.id;
}

void PrefixCache::save(CheckpointId id, const PrefixChain& chain, std::span<const int32_t> ids) {
  const auto found = places_.find(id);
  if (units_ == nullptr || found == places_.end()) return;
  finish_saves(/*wait=*/true);  // the unit before is often the parent of this one
  const int place = found->second;
  const PagePrefix& pages = checkpoints_[static_cast<size_t>(place)].pages;
  UnitStore::Saving unit = units_->begin_save(chain, ids.first(static_cast<size_t>(pages.tokens)));
  if (unit.pieces.blocks.empty()) return;
  auto transfer = bytes_.copy_to_host(pages, states_of(place), unit.first, unit.pieces);
  save_ = Save{id, std::move(unit), std::move(transfer)};
  finish_saves(/*wait=*/false);
}

void PrefixCache::finish_saves(bool wait) {
  if (!save_) return;
  if (wait) save_->transfer->wait();
  if (!save_->transfer->done()) return;
  units_->finish_save(std::move(save_->unit));
  save_.reset();
}

void PrefixCache::give_up(int place) {
  Checkpoint& checkpoint = checkpoints_[static_cast<size_t>(place)];
  if (save_ && save_->checkpoint == checkpoint.id) finish_saves(/*wait=*/true);
  by_use_.erase(checkpoint.last_use);
  places_.erase(checkpoint.id);
  index_.erase(place);
  cache_.tables().release(checkpoint.pages);
  checkpoint = {};
  free_.push_back(place);
}

void PrefixCache::erase(CheckpointId id) {
  const auto found = places_.find(id);
  if (found != places_.end()) give_up(found->second);
}

bool PrefixCache::evict() {
  if (by_use_.empty()) return false;
  give_up(by_use_.begin()->second);
  return true;
}

void PrefixCache::check_invariants() const {
  DSV4_CHECK(
      by_use_.size() + free_.size() == checkpoints_.size() && places_.size() == by_use_.size(),
      "{} checkpoints, of which {} are free, {} ordered by use and {} known by id",
      checkpoints_.size(), free_.size(), by_use_.size(), places_.size());
  for (const auto& [use, place] : by_use_) {
    const Checkpoint& checkpoint = checkpoints_[static_cast<size_t>(place)];
    const auto found = places_.find(checkpoint.id);
    DSV4_CHECK(checkpoint.last_use == use && checkpoint.pages.tokens > 0 &&
                   found != places_.end() && found->second == place,
               "place {} has a checkpoint of {} tokens, used {} and not {}", place,
               checkpoint.pages.tokens, checkpoint.last_use, use);
  }
  if (units_ != nullptr) units_->check_invariants();
}

}  // namespace dsv4
