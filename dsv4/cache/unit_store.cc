// The engine's half of the store; unit_store_io.cc is that of its threads.

#include "dsv4/cache/unit_store.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/thread.h"

namespace dsv4 {
namespace {

constexpr int64_t kLeastSlot = 4096;  // bytes
constexpr int kReaders = 4;

int64_t slot_bytes(const UnitLayout& layout) {
  return std::max(layout.block_bytes, kLeastSlot);
}

}  // namespace

UnitStore::UnitStore(const UnitStoreOptions& options, const UnitLayout& layout,
                     const Digest& fingerprint, Memory& memory)
    : options_(options),
      layout_(layout),
      fingerprint_(fingerprint),
      arena_(slot_bytes(layout), options.ram_bytes / slot_bytes(layout), memory) {
  const int64_t least = slots_of({.run = layout.step, .layout = layout});
  if (arena_.num_slots() < least)
    fail(ErrorCode::kBadInput,
         "{} bytes of host memory for the prefix cache do not hold one checkpoint of {} bytes",
         options.ram_bytes, least * arena_.slot_bytes());
  for (const CacheTier tier : {CacheTier::kRam, CacheTier::kDisk})
    ledgers_[static_cast<size_t>(tier)] = BlockLedger(tier, layout.step, options.block_events);
  if (options.folder.empty()) return;
  folder_ = std::make_unique<UnitFolder>(options.folder, fingerprint);
  index_folder();
  try {
    threads_.push_back(start_thread("the disk thread of the prefix cache", [this] { run(); }));
    for (int i = 0; i < kReaders; ++i)
      threads_.push_back(start_thread("a reader of the prefix cache", [this] { run_reader(); }));
  } catch (...) {  // those that run use this object
    join_threads();
    throw;
  }
}

UnitStore::~UnitStore() {
  join_threads();
}

void UnitStore::join_threads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::jthread& thread : threads_) thread.join();
}

// One slot a block, and as many as the checkpoint fills.
int64_t UnitStore::slots_of(const UnitHeader& header) const {
  return header.blocks() + ceil_div(layout_.checkpoint_bytes, arena_.slot_bytes());
}

void UnitStore::append_blocks(const Entry& entry, std::vector<std::span<std::byte>>& blocks) const {
  for (size_t i = 0; i < static_cast<size_t>(entry.header.blocks()); ++i)
    blocks.emplace_back(arena_.data(entry.slots[i]), static_cast<size_t>(layout_.block_bytes));
}

std::vector<std::span<std::byte>> UnitStore::checkpoint_of(const Entry& entry) const {
  std::vector<std::span<std::byte>> pieces;
  int64_t left = layout_.checkpoint_bytes;
  for (auto i = static_cast<size_t>(entry.header.blocks()); i < entry.slots.size(); ++i) {
    const int64_t bytes = std::min(left, arena_.slot_bytes());
    pieces.emplace_back(arena_.data(entry.slots[i]), static_cast<size_t>(bytes));
    left -= bytes;
  }
  return pieces;
}

UnitPieces UnitStore::pieces_of(const Entry& entry) const {
  UnitPieces pieces{.ids = entry.ids, .checkpoint = checkpoint_of(entry)};
  append_blocks(entry, pieces.blocks);
  return pieces;
}

bool UnitStore::disk_usable() const {
  return folder_ != nullptr && Clock::now() >= disk_off_until_;
}

// The whole chain can be read, and what is known of its ids is the text's.
bool UnitStore::usable(const Entry& leaf, std::span<const int32_t> ids, bool from_disk) const {
  for (const Entry* entry = &leaf; entry != nullptr; entry = entry->parent.get()) {
    if (entry->slots.empty() && !(from_disk && entry->on_disk && disk_usable())) return false;
    const auto begin = static_cast<size_t>(entry->header.position - entry->header.run);
    if (!entry->ids.empty() &&
        !std::ranges::equal(entry->ids, ids.subspan(begin).first(entry->ids.size())))
      return false;
  }
  return true;
}

UnitStore::EntryPtr UnitStore::longest(const PrefixChain& chain, std::span<const int32_t> ids,
                                       size_t steps, bool from_disk) const {
  while (steps-- > 0) {
    const auto found = units_.find(chain.keys()[steps]);
    if (found != units_.end() && usable(*found->second, ids, from_disk)) return found->second;
  }
  return nullptr;
}

int64_t UnitStore::bytes_to_read(const Entry& leaf) {
  int64_t bytes = 0;
  for (const Entry* entry = &leaf; entry != nullptr; entry = entry->parent.get())
    bytes += entry->slots.empty() ? entry->file_bytes : 0;
  return bytes;
}

// Units that others need count as used after them.
void UnitStore::touch(const EntryPtr& leaf) {
  const auto now = Clock::now();
  for (Entry* entry = leaf.get(); entry != nullptr; entry = entry->parent.get()) {
    entry->last_use = ++num_uses_;
    entry->hits = decayed_hits(*entry, now) + 1;
    entry->hit_at = now;
  }
}

double UnitStore::decayed_hits(const Entry& entry, Clock::time_point now) {
  constexpr double kHalfLife = 6 * 3600;
  return entry.hits *
         std::exp2(-std::chrono::duration<double>(now - entry.hit_at).count() / kHalfLife);
}

void UnitStore::add(const EntryPtr& entry) {
  units_.emplace(entry->header.key, entry);
  if (entry->parent != nullptr) ++entry->parent->children;
  touch(entry);
}

void UnitStore::put_in_ram(Entry& entry, std::vector<int32_t> slots) {
  entry.slots = std::move(slots);
  ++stats_.ram_units;
}

void UnitStore::take_from_ram(Entry& entry) {
  if (entry.slots.empty()) return;
  publish_removed(entry, CacheTier::kRam);
  arena_.give(entry.slots);
  entry.slots.clear();
  --stats_.ram_units;
}

void UnitStore::set_on_disk(Entry& entry, int64_t bytes) {
  entry.on_disk = true;
  entry.file_bytes = bytes;
  ++stats_.disk_units;
  stats_.disk_bytes += bytes;
  publish_stored(entry, CacheTier::kDisk);
}

void UnitStore::remove_from_disk(Entry& entry) {
  if (!entry.on_disk) return;
  entry.on_disk = false;
  publish_removed(entry, CacheTier::kDisk);
  --stats_.disk_units;
  stats_.disk_bytes -= entry.file_bytes;
  removals_.push_back(entry.header.key);
}

void UnitStore::release_if_dead(Entry& entry) {
  if (entry.dead && entry.pins == 0 && !entry.writing && entry.read != Io::kActive)
    take_from_ram(entry);
}

void UnitStore::forget(const EntryPtr& entry) {
  std::vector<EntryPtr> children;
  for (const auto& [key, other] : units_) {
    if (entry->children == 0) break;
    if (other->parent == entry) children.push_back(other);
  }
  for (const EntryPtr& child : children) forget(child);
  units_.erase(entry->header.key);
  if (entry->parent != nullptr) --entry->parent->children;
  entry->dead = true;
  publish_removed(*entry, CacheTier::kRam);
  std::erase(writes_, entry);
  remove_from_disk(*entry);
  release_if_dead(*entry);
}

void UnitStore::unpin(const EntryPtr& entry) {
  --entry->pins;
  release_if_dead(*entry);
}

// The least recently used unit that may leave host memory: one that is written, or one that is on
// no disk and that no other unit needs.
UnitStore::EntryPtr UnitStore::oldest_in_ram(bool written) const {
  EntryPtr oldest;
  for (const auto& [key, entry] : units_) {
    const bool busy = entry->pins > 0 || entry->writing || entry->read != Io::kNone;
    if (entry->slots.empty() || busy || entry->on_disk != written) continue;
    if (!written && entry->children > 0) continue;
    if (oldest == nullptr || entry->last_use < oldest->last_use) oldest = entry;
  }
  return oldest;
}

std::optional<std::vector<int32_t>> UnitStore::take_slots(int64_t count) {
  if (count > arena_.num_slots()) return std::nullopt;
  while (arena_.num_free() < count) {
    EntryPtr oldest = oldest_in_ram(/*written=*/true);
    if (oldest == nullptr) oldest = oldest_in_ram(/*written=*/false);
    if (oldest == nullptr) return std::nullopt;
    ++stats_.ram_evictions;
    evict_from_ram(oldest);
  }
  return arena_.take(count);
}

void UnitStore::evict_from_ram(const EntryPtr& entry) {
  if (entry->on_disk) return take_from_ram(*entry);
  ++stats_.lost;
  forget(entry);
}

int64_t UnitStore::match(const PrefixChain& chain, std::span<const int32_t> ids) const {
  const Lock lock(mutex_);
  const EntryPtr leaf = longest(chain, ids, ids.size() / static_cast<size_t>(layout_.step));
  return leaf == nullptr ? 0 : leaf->header.position;
}

std::unique_ptr<UnitStore::Lease> UnitStore::find(const PrefixChain& chain,
                                                  std::span<const int32_t> ids, int64_t more_than,
                                                  double seconds_per_token) {
  const Lock lock(mutex_);
  const size_t steps = ids.size() / static_cast<size_t>(layout_.step);
  EntryPtr leaf = longest(chain, ids, steps);
  if (leaf == nullptr || leaf->header.position <= more_than) return nullptr;
  const auto bytes = static_cast<double>(bytes_to_read(*leaf));
  const auto spared = static_cast<double>(leaf->header.position - more_than);
  if (read_rate_ > 0 && seconds_per_token > 0 && bytes / read_rate_ > spared * seconds_per_token) {
    ++stats_.recomputed;
    leaf = longest(chain, ids, steps, /*from_disk=*/false);
    if (leaf == nullptr || leaf->header.position <= more_than) return nullptr;
  }
  touch(leaf);
  std::vector<EntryPtr> units;
  for (EntryPtr entry = leaf; entry != nullptr; entry = entry->parent) units.push_back(entry);
  std::reverse(units.begin(), units.end());
  const auto text = ids.first(static_cast<size_t>(leaf->header.position));
  auto lease = std::make_unique<Lease>(*this, units, std::vector(text.begin(), text.end()));
  for (const EntryPtr& entry : units) {
    ++entry->pins;
    if (!entry->slots.empty() && entry->read == Io::kNone) continue;
    lease->from_disk_ = true;
    if (entry->read != Io::kNone) continue;
    entry->read = Io::kQueued;
    reads_.push_back(entry);
  }
  changed_.notify_all();
  return lease;
}

UnitStore::Saving UnitStore::begin_save(const PrefixChain& chain, std::span<const int32_t> ids) {
  const size_t steps = ids.size() / static_cast<size_t>(layout_.step);
  DSV4_CHECK(steps > 0 && ids.size() % static_cast<size_t>(layout_.step) == 0 &&
                 steps <= chain.keys().size(),
             "a unit of {} tokens, in steps of {}, with {} keys", ids.size(), layout_.step,
             chain.keys().size());
  const Lock lock(mutex_);
  Saving saving;
  const PrefixKey& key = chain.keys()[steps - 1];
  if (const auto found = units_.find(key); found != units_.end()) {
    touch(found->second);
    saving.kept = usable(*found->second, ids);
    return saving;
  }
  auto entry = std::make_shared<Entry>();
  entry->parent = longest(chain, ids, steps - 1);
  const EntryPtr& parent = entry->parent;
  saving.first = parent == nullptr ? 0 : parent->header.position;
  entry->header = {.fingerprint = fingerprint_,
                   .salt = chain.salt(),
                   .key = key,
                   .parent = parent == nullptr ? PrefixKey{} : parent->header.key,
                   .position = static_cast<int64_t>(ids.size()),
                   .run = static_cast<int64_t>(ids.size()) - saving.first,
                   .layout = layout_};
  entry->ids.assign(ids.begin() + saving.first, ids.end());
  if (parent != nullptr) ++parent->pins;
  auto slots = take_slots(slots_of(entry->header));
  if (!slots) {
    if (parent != nullptr) unpin(parent);
    ++stats_.not_saved;
    return saving;
  }
  put_in_ram(*entry, std::move(*slots));
  saving.pieces = pieces_of(*entry);
  saving.entry = std::move(entry);
  return saving;
}

bool UnitStore::finish_save(Saving saving) {
  if (saving.entry == nullptr) return saving.kept;
  const Lock lock(mutex_);
  const EntryPtr& entry = saving.entry;
  const EntryPtr& parent = entry->parent;
  if (parent != nullptr) unpin(parent);
  if ((parent != nullptr && parent->dead) || units_.contains(entry->header.key)) {
    take_from_ram(*entry);
    ++stats_.not_saved;
    return false;
  }
  add(entry);
  publish_stored(*entry, CacheTier::kRam);
  ++stats_.saved;
  if (folder_ != nullptr) writes_.push_back(entry);
  changed_.notify_all();
  return true;
}

bool UnitStore::save(const PrefixChain& chain, std::span<const int32_t> ids, const Fill& fill) {
  Saving saving = begin_save(chain, ids);
  if (saving.entry != nullptr) fill(saving.first, saving.pieces);
  return finish_save(std::move(saving));
}

void UnitStore::export_text(const std::string& path, const PrefixChain& chain,
                            std::span<const int32_t> ids) {
  const auto lease = find(chain, ids, static_cast<int64_t>(ids.size()) - 1);
  if (lease == nullptr || lease->wait_for(std::chrono::minutes(1)) != Lease::State::kReady)
    fail(ErrorCode::kResource, "{} tokens of the conversation are not kept", ids.size());
  write_unit(path,
             {.fingerprint = fingerprint_,
              .salt = chain.salt(),
              .key = chain.keys()[ids.size() / static_cast<size_t>(layout_.step) - 1],
              .position = lease->tokens(),
              .run = lease->tokens(),
              .layout = layout_},
             {.ids = {ids.begin(), ids.end()},
              .blocks = lease->blocks(),
              .checkpoint = lease->checkpoint()});
}

void UnitStore::import_text(const std::string& path) {
  auto entry = std::make_shared<Entry>();
  entry->header = read_unit_header(path);
  if (entry->header.fingerprint != fingerprint_ || entry->header.layout != layout_)
    fail(ErrorCode::kBadInput,
         "{} is of another model, or was written with other options: give another file", path);
  if (!entry->header.is_root())
    fail(ErrorCode::kBadInput, "{} does not begin with the first token of a text", path);
  Lock lock(mutex_);
  if (units_.contains(entry->header.key)) return;
  auto slots = take_slots(slots_of(entry->header));
  if (!slots)
    fail(ErrorCode::kResource, "{} holds {} tokens, for which there is no memory", path,
         entry->header.position);
  put_in_ram(*entry, std::move(*slots));
  UnitPieces pieces = pieces_of(*entry);
  try {
    read_unit(path, entry->header, pieces);
  } catch (...) {
    take_from_ram(*entry);
    throw;
  }
  entry->ids = std::move(pieces.ids);
  add(entry);
  publish_stored(*entry, CacheTier::kRam);
}

void UnitStore::drop_all() {
  const Lock lock(mutex_);
  for (const auto& [key, entry] : units_) {
    entry->dead = true;
    publish_removed(*entry, CacheTier::kRam);
    remove_from_disk(*entry);
    release_if_dead(*entry);
  }
  units_.clear();
  writes_.clear();
  changed_.notify_all();
}

void UnitStore::drop_ram() {
  const Lock lock(mutex_);
  for (const bool written : {true, false}) {
    while (const EntryPtr entry = oldest_in_ram(written)) evict_from_ram(entry);
  }
  changed_.notify_all();
}

void UnitStore::flush() {
  Lock lock(mutex_);
  changed_.wait(
      lock, [&] { return !disk_usable() || (writes_.empty() && removals_.empty() && !writing_); });
}

UnitStoreStats UnitStore::stats() const {
  const Lock lock(mutex_);
  UnitStoreStats stats = stats_;
  stats.ram_bytes = (arena_.num_slots() - arena_.num_free()) * arena_.slot_bytes();
  stats.queued_writes = static_cast<int64_t>(writes_.size());
  stats.disk_paused = folder_ != nullptr && !disk_usable();
  return stats;
}

double UnitStore::read_rate() const {
  const Lock lock(mutex_);
  return read_rate_;
}

void UnitStore::check_invariants() const {
  const Lock lock(mutex_);
  int64_t slots = 0, in_ram = 0, on_disk = 0, disk_bytes = 0;
  std::map<const Entry*, int> children;
  for (const auto& [key, entry] : units_) {
    DSV4_CHECK(!entry->dead && entry->header.key == key, "unit {} is forgotten", key.hex());
    DSV4_CHECK(!entry->slots.empty() || entry->on_disk, "unit {} is nowhere", key.hex());
    slots += static_cast<int64_t>(entry->slots.size());
    in_ram += entry->slots.empty() ? 0 : 1;
    on_disk += entry->on_disk ? 1 : 0;
    disk_bytes += entry->on_disk ? entry->file_bytes : 0;
    if (entry->parent == nullptr) continue;
    ++children[entry->parent.get()];
    DSV4_CHECK(units_.contains(entry->parent->header.key) && !entry->parent->dead,
               "unit {} needs one that is forgotten", key.hex());
  }
  for (const auto& [key, entry] : units_)
    DSV4_CHECK(entry->children == children[entry.get()], "unit {}: {} children, {} counted",
               key.hex(), children[entry.get()], entry->children);
  DSV4_CHECK(slots <= arena_.num_slots() - arena_.num_free() && in_ram <= stats_.ram_units &&
                 on_disk == stats_.disk_units && disk_bytes == stats_.disk_bytes,
             "{} slots, {} units in host memory, {} on disk of {} bytes", slots, in_ram, on_disk,
             disk_bytes);
}

UnitStore::Lease::Lease(UnitStore& store, std::vector<EntryPtr> chain, std::vector<int32_t> ids)
    : store_(store), chain_(std::move(chain)), ids_(std::move(ids)) {
}

UnitStore::Lease::~Lease() {
  const Lock lock(store_.mutex_);
  for (const EntryPtr& entry : chain_) store_.unpin(entry);
}

UnitStore::Lease::State UnitStore::state_of(Lease& lease) const {
  for (const EntryPtr& entry : lease.chain_) {
    if (entry->dead) return Lease::State::kGone;
    if (entry->read != Io::kNone) return Lease::State::kLoading;
    if (entry->slots.empty()) return Lease::State::kGone;
  }
  if (!lease.checked_ && !usable(*lease.chain_.back(), lease.ids_)) return Lease::State::kGone;
  lease.checked_ = true;
  return Lease::State::kReady;
}

UnitStore::Lease::State UnitStore::Lease::state() {
  const Lock lock(store_.mutex_);
  return store_.state_of(*this);
}

UnitStore::Lease::State UnitStore::Lease::wait_for(std::chrono::milliseconds time) {
  Lock lock(store_.mutex_);
  store_.changed_.wait_for(lock, time, [&] { return store_.state_of(*this) != State::kLoading; });
  return store_.state_of(*this);
}

std::vector<std::span<std::byte>> UnitStore::Lease::blocks() const {
  std::vector<std::span<std::byte>> blocks;
  for (const EntryPtr& entry : chain_) store_.append_blocks(*entry, blocks);
  return blocks;
}

std::vector<std::span<std::byte>> UnitStore::Lease::checkpoint() const {
  return store_.checkpoint_of(*chain_.back());
}

}  // namespace dsv4
