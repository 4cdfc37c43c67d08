// The threads of the store. The disk thread removes files, then writes; the readers read, because
// requests wait for that. The mutex is not held while a file is read or written.

#include <algorithm>
#include <limits>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/cache/unit_store.h"

namespace dsv4 {

// In the constructor, before the thread runs. A unit without those that it needs is of no use.
void UnitStore::index_folder() {
  std::vector<UnitFolder::File> files = folder_->scan(layout_);
  stats_.bad_files = folder_->num_bad();
  std::ranges::sort(files, {}, [](const UnitFolder::File& file) { return file.header.position; });
  for (const UnitFolder::File& file : files) {
    auto entry = std::make_shared<Entry>();
    entry->header = file.header;
    const bool root = file.header.is_root();
    const auto parent = units_.find(file.header.parent);
    if (!root && parent != units_.end()) entry->parent = parent->second;
    const int64_t begin = entry->parent == nullptr ? 0 : entry->parent->header.position;
    if ((!root && entry->parent == nullptr) || begin + file.header.run != file.header.position) {
      folder_->remove(file.header.key);
      continue;
    }
    add(entry);
    entry->hit_at -= std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(file.age_seconds));
    set_on_disk(*entry, file.bytes);
  }
  other_bytes_ = folder_->shrink_others(std::numeric_limits<int64_t>::max());
  shrink_disk();
}

void UnitStore::run() {
  Lock lock(mutex_);
  for (;;) {
    if (!removals_.empty()) {
      remove_files(lock);
    } else if (!writes_.empty() && disk_usable()) {
      write_one(lock);
    } else if (stopping_) {
      return;
    } else if (writes_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, disk_off_until_);
    }
  }
}

void UnitStore::run_reader() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !reads_.empty(); });
    if (reads_.empty()) return;
    read_one(lock);
  }
}

void UnitStore::remove_files(Lock& lock) {
  const std::vector<PrefixKey> keys = removals_;
  lock.unlock();
  for (const PrefixKey& key : keys) folder_->remove(key);
  lock.lock();
  removals_.erase(removals_.begin(), removals_.begin() + static_cast<std::ptrdiff_t>(keys.size()));
  changed_.notify_all();
}

void UnitStore::pause_disk(const std::string& error) {
  ++stats_.io_errors;
  disk_off_until_ = Clock::now() + options_.disk_pause;
  if (!std::exchange(disk_fails_, true) && options_.on_disk_state) options_.on_disk_state(error);
}

void UnitStore::disk_works() {
  if (std::exchange(disk_fails_, false) && options_.on_disk_state) options_.on_disk_state("");
}

void UnitStore::read_one(Lock& lock) {
  const EntryPtr entry = reads_.front();
  reads_.pop_front();
  auto slots = entry->dead || !disk_usable() ? std::nullopt : take_slots(slots_of(entry->header));
  if (!slots) {
    entry->read = Io::kNone;
    return changed_.notify_all();
  }
  put_in_ram(*entry, std::move(*slots));
  entry->read = Io::kActive;
  UnitPieces pieces = pieces_of(*entry);
  const int busy = ++reading_;
  lock.unlock();
  const auto begin = Clock::now();
  std::optional<Error> failed;
  try {
    folder_->read(entry->header, pieces);
  } catch (const Error& error) {
    failed = error;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const bool bad = failed && failed->code() != ErrorCode::kIo;
  if (bad) folder_->move_to_bad(entry->header.key);
  lock.lock();
  --reading_;
  entry->read = Io::kNone;
  if (!failed) {
    entry->ids = std::move(pieces.ids);
    // A text is read by several threads when it has several units.
    const double rate = static_cast<double>(entry->file_bytes) / std::max(seconds, 1e-6) * busy;
    read_rate_ = read_rate_ == 0 ? rate : 0.75 * read_rate_ + 0.25 * rate;
    ++stats_.read;
    disk_works();
    publish_stored(*entry, CacheTier::kRam);
    if (entry->on_disk) publish_stored(*entry, CacheTier::kDisk);
    release_if_dead(*entry);
    return changed_.notify_all();
  }
  take_from_ram(*entry);
  if (!bad) {
    pause_disk(failed->what());
  } else {
    ++stats_.bad_files;
    if (!entry->dead) forget(entry);
  }
  changed_.notify_all();
}

void UnitStore::write_one(Lock& lock) {
  const EntryPtr entry = writes_.front();
  writes_.pop_front();
  const EntryPtr& parent = entry->parent;
  if (entry->dead || entry->on_disk || entry->slots.empty()) return changed_.notify_all();
  if (parent != nullptr && !parent->on_disk) {  // its own write was given up, or its file removed
    if (parent->slots.empty()) return changed_.notify_all();
    writes_.push_front(entry);
    writes_.push_front(parent);
    return;
  }
  entry->writing = writing_ = true;
  const UnitPieces pieces = pieces_of(*entry);
  lock.unlock();
  int64_t bytes = 0;
  std::string failed;
  try {
    bytes = folder_->write(entry->header, pieces);
  } catch (const Error& error) {
    failed = error.what();
  }
  if (bytes > 0 && options_.on_written) options_.on_written(entry->header);
  lock.lock();
  entry->writing = writing_ = false;
  if (bytes == 0) {
    pause_disk(failed);
    if (!entry->dead) writes_.push_front(entry);
  } else {
    ++stats_.written;
    disk_works();
    set_on_disk(*entry, bytes);
    if (entry->dead) remove_from_disk(*entry);
    shrink_disk();
  }
  release_if_dead(*entry);
  changed_.notify_all();
}

// Files of other models go first. Then those with the least value, hits times tokens over bytes,
// that no other unit needs.
void UnitStore::shrink_disk() {
  const auto now = Clock::now();
  const int64_t left = std::max<int64_t>(0, options_.disk_bytes - stats_.disk_bytes);
  if (other_bytes_ > left) other_bytes_ = folder_->shrink_others(left);
  while (stats_.disk_bytes > options_.disk_bytes) {
    EntryPtr least;
    double least_value = 0;
    for (const auto& [key, entry] : units_) {
      if (!entry->on_disk || entry->children > 0 || entry->pins > 0 || entry->writing) continue;
      const double value = decayed_hits(*entry, now) * static_cast<double>(entry->header.run) /
                           static_cast<double>(entry->file_bytes);
      if (least != nullptr && value >= least_value) continue;
      least = entry;
      least_value = value;
    }
    if (least == nullptr) return;
    ++stats_.disk_evictions;
    if (least->slots.empty()) {
      forget(least);
    } else {
      remove_from_disk(*least);
    }
  }
}

}  // namespace dsv4
