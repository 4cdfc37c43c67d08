// Units of texts in host memory and on a disk: the tiers after an engine's own pages
// (docs/spec/serving.md 5.5, 5.6).
//
//   engine --save()--> host memory --disk thread--> disk
//   engine <--Lease--- host memory <----readers---- disk
//
// A unit needs every unit before it, so the units of a text form a chain, and a unit is evicted
// only after its descendants. Every saved unit is written to the disk in the background; host
// memory then drops the least recently used. A unit that cannot be read or is damaged is a miss,
// and so are all units that need it. After an error of the system (a full disk) the disk is not
// used for a minute.
//
// save() and find() belong to one thread, the engine's. The store has threads of its own: one disk
// thread, which alone writes and removes files, and readers, because one thread reads the files of
// a long text at a fraction of what memory and a fast disk give.

#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dsv4/cache/block_events.h"
#include "dsv4/cache/slot_arena.h"
#include "dsv4/cache/unit_folder.h"

namespace dsv4 {

struct UnitStoreOptions {
  int64_t ram_bytes = 0;
  std::string folder;  // of the disk tier; empty: none
  int64_t disk_bytes = int64_t{64} << 30;
  std::chrono::milliseconds disk_pause{60'000};  // after an error of the system
  // A unit that was saved is on the disk from now on, whatever happens to the program. Called on
  // the disk thread.
  std::function<void(const UnitHeader&)> on_written;
  // The disk begins to fail, with this error, or works again (empty): once each, however many
  // pauses lie between. Called on a thread of the store; must not call the store.
  std::function<void(const std::string& error)> on_disk_state;
  BlockEvents block_events;  // of both tiers; null: none
};

struct UnitStoreStats {
  int64_t ram_units = 0, ram_bytes = 0;  // bytes: of the slots in use
  int64_t disk_units = 0, disk_bytes = 0;
  int64_t saved = 0;              // by the engine
  int64_t written = 0, read = 0;  // files
  int64_t ram_evictions = 0, disk_evictions = 0;
  int64_t lost = 0;        // units that left host memory and were not on a disk
  int64_t not_saved = 0;   // for which there was no room
  int64_t recomputed = 0;  // texts that were on the disk and that computing was faster for
  int64_t bad_files = 0, io_errors = 0;
  int64_t queued_writes = 0;
  bool disk_paused = false;
};

class UnitStore {
 public:
  UnitStore(const UnitStoreOptions& options, const UnitLayout& layout, const Digest& fingerprint,
            Memory& memory);
  ~UnitStore();  // after the queued writes

  const UnitLayout& layout() const { return layout_; }
  const Digest& fingerprint() const { return fingerprint_; }

 private:
  struct Entry;

 public:
  // Units that hold a beginning of a text. They stay in host memory while this exists.
  class Lease {
   public:
    Lease(UnitStore& store, std::vector<std::shared_ptr<Entry>> chain, std::vector<int32_t> ids);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    // kGone: a unit could not be read, or belongs to another text.
    enum class State { kLoading, kReady, kGone };
    State state();
    // Returns when the units are no longer loading, at the latest after this time.
    State wait_for(std::chrono::milliseconds time);

    std::span<const int32_t> ids() const { return ids_; }
    int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
    bool from_disk() const { return from_disk_; }
    // Once it is ready: the bytes of each step of the text, and of the checkpoint at its end.
    std::vector<std::span<std::byte>> blocks() const;
    std::vector<std::span<std::byte>> checkpoint() const;

   private:
    friend class UnitStore;
    UnitStore& store_;
    std::vector<std::shared_ptr<Entry>> chain_;  // from the first step of the text
    std::vector<int32_t> ids_;
    bool from_disk_ = false, checked_ = false;
  };

  // The longest beginning of `ids` of more than `more_than` tokens, whose units begin to be read
  // where they are on the disk; null: there is none. `chain`: of `ids`. Where reading would take
  // longer than computing the tokens, at so many seconds each (0: not known), the longest beginning
  // in host memory.
  std::unique_ptr<Lease> find(const PrefixChain& chain, std::span<const int32_t> ids,
                              int64_t more_than, double seconds_per_token = 0);
  // Length of that beginning; nothing is read.
  int64_t match(const PrefixChain& chain, std::span<const int32_t> ids) const;

  // Keeps the text `ids`, a multiple of the step long. `fill` writes the blocks of the tokens from
  // `first` on, and the checkpoint. False: there is no room. True without a call of `fill`: it is
  // kept already.
  using Fill = std::function<void(int64_t first, const UnitPieces& pieces)>;
  bool save(const PrefixChain& chain, std::span<const int32_t> ids, const Fill& fill);

  // save() in two halves, for bytes that arrive meanwhile. Until finish_save() the unit does not
  // exist for any other call.
  struct Saving {
    bool kept = false;  // already, as `save` says; otherwise without pieces there is no room
    int64_t first = 0;
    UnitPieces pieces;

   private:
    friend class UnitStore;
    std::shared_ptr<Entry> entry;
  };
  Saving begin_save(const PrefixChain& chain, std::span<const int32_t> ids);
  bool finish_save(Saving saving);

  // The text as one file of its own, and back; for one conversation.
  void export_text(const std::string& path, const PrefixChain& chain, std::span<const int32_t> ids);
  void import_text(const std::string& path);

  void drop_all();  // units in use stay until their leases end
  void drop_ram();  // of the units that are not in use; those that are on the disk stay there
  void flush();     // returns when every queued write is done or the disk is paused
  UnitStoreStats stats() const;
  // Bytes a second of reads so far; 0: none yet.
  double read_rate() const;
  void check_invariants() const;
  // The blocks that the units of texts without a salt have in a tier, computed anew from their ids.
  std::vector<uint64_t> blocks(CacheTier tier) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Io { kNone, kQueued, kActive };
  struct Entry {
    UnitHeader header;
    std::vector<int32_t> ids;    // [run] once it has been in host memory
    std::vector<int32_t> slots;  // of the arena; empty: not in host memory
    std::shared_ptr<Entry> parent;
    int pins = 0, children = 0;
    bool on_disk = false, writing = false;
    bool dead = false;                             // forgotten; its slots go back with the last pin
    std::array<bool, kNumCacheTiers> published{};  // its blocks, as stored in this tier
    Io read = Io::kNone;
    int64_t file_bytes = 0;
    uint64_t last_use = 0;
    double hits = 1;  // decayed to `hit_at`
    Clock::time_point hit_at;
  };
  using EntryPtr = std::shared_ptr<Entry>;
  using Lock = std::unique_lock<std::mutex>;

  // Caller holds mutex_.
  int64_t slots_of(const UnitHeader& header) const;
  void append_blocks(const Entry& entry, std::vector<std::span<std::byte>>& blocks) const;
  std::vector<std::span<std::byte>> checkpoint_of(const Entry& entry) const;
  UnitPieces pieces_of(const Entry& entry) const;
  bool disk_usable() const;
  bool usable(const Entry& leaf, std::span<const int32_t> ids, bool from_disk = true) const;
  EntryPtr longest(const PrefixChain& chain, std::span<const int32_t> ids, size_t steps,
                   bool from_disk = true) const;
  static int64_t bytes_to_read(const Entry& leaf);
  void touch(const EntryPtr& leaf);
  static double decayed_hits(const Entry& entry, Clock::time_point now);
  void add(const EntryPtr& entry);
  void forget(const EntryPtr& entry);  // and all units that need it
  void unpin(const EntryPtr& entry);
  void put_in_ram(Entry& entry, std::vector<int32_t> slots);
  void take_from_ram(Entry& entry);
  void evict_from_ram(const EntryPtr& entry);
  void release_if_dead(Entry& entry);
  void set_on_disk(Entry& entry, int64_t bytes);
  void remove_from_disk(Entry& entry);
  std::vector<uint64_t> blocks_of(const Entry& entry) const;
  void publish_stored(Entry& entry, CacheTier tier);
  void publish_removed(Entry& entry, CacheTier tier);
  std::optional<std::vector<int32_t>> take_slots(int64_t count);
  EntryPtr oldest_in_ram(bool written) const;
  Lease::State state_of(Lease& lease) const;

  // The disk thread and the readers (unit_store_io.cc).
  void index_folder();
  void join_threads();
  void run();
  void run_reader();
  void remove_files(Lock& lock);
  void read_one(Lock& lock);
  void write_one(Lock& lock);
  void shrink_disk();
  void pause_disk(const std::string& error);
  void disk_works();

  const UnitStoreOptions options_;
  const UnitLayout layout_;
  const Digest fingerprint_;
  SlotArena arena_;
  std::unique_ptr<UnitFolder> folder_;  // of the threads, after the constructor

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<PrefixKey, EntryPtr> units_;
  std::array<BlockLedger, kNumCacheTiers> ledgers_;
  std::deque<EntryPtr> reads_, writes_;
  std::vector<PrefixKey> removals_;  // of files
  uint64_t num_uses_ = 0;
  bool writing_ = false;
  int reading_ = 0;  // readers with a file
  Clock::time_point disk_off_until_{};
  bool disk_fails_ = false;  // since its last success
  double read_rate_ = 0;     // of all readers together
  int64_t other_bytes_ = 0;  // on the disk, of units of other models and of files in bad/
  bool stopping_ = false;
  UnitStoreStats stats_;

  std::vector<std::jthread> threads_;  // the last member: they use the others
};

}  // namespace dsv4
