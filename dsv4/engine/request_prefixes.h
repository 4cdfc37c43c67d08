// What stored prefixes do for the requests of an engine (docs/spec/serving.md 5): with which tokens
// a request begins, where checkpoints are made while it runs, and what stays stored after it.
//
//   waiting      look_up()           begins to read units of its text
//   planned      plan()              with what it would begin, and where its chunk has to end
//   admitted     begin()             its sequence opens with the longest stored prefix
//   before step  checkpoint_after()  where in its next tokens a checkpoint is made
//                reserve()           room for them, at the cost of stored prefixes
//   in the step  store()             its sequence holds exactly the tokens of a checkpoint
//   after step   after_step()        checkpoints of prompts become units
//   finished or preempted   end()    its sequence closes, its answer becomes a unit
//
// This class owns what a request has of the cache: its sequence from begin() to end(), the units
// that it waits for, and the handle of its answer's checkpoint. PrefixCache owns the checkpoints,
// PageTables the pages. The engine owns the order of the requests and their tokens; after a step it
// adds to `cached` what the step has committed.
//
// What holds between two calls:
//   - request.runs() from begin() to end(), and then `cached` tokens are in its sequence;
//   - a request has units (a lease) only while it waits; those that the device may still read stay
//     until a step has ended;
//   - an answer has one checkpoint, its newest; a new one takes its place. Those of prompts stay
//     until they are evicted.
//
// No call takes a token that could be taken back. A step that computes drafts reserves their room
// and commits when it knows which are accepted. It asks checkpoint_after() with the number of
// tokens that it will commit, adds the accepted ones to the request, and calls store() between two
// commits, as in a prompt. A sequence is never longer than what is accepted.
//
// Without a prefix cache sequences open and close, and nothing is stored. The engine's thread alone
// calls this.

#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/engine/prefix_cache.h"

namespace dsv4 {

struct RequestState;

enum class PrefixTier : uint8_t { kCache, kRam, kDisk };  // fastest first

class RequestPrefixes {
 public:
  struct Options {
    int64_t checkpoint_interval = 2048;  // tokens between checkpoints inside a long prompt
    std::chrono::milliseconds longest_load{2000};  // that a request waits for units on the disk
  };
  // What this class keeps of a request; no other class reads it.
  class State {
    friend class RequestPrefixes;
    std::optional<PrefixChain> chain;         // of its tokens; with tiers only
    std::unique_ptr<UnitStore::Lease> lease;  // while it waits: of the units it would begin with
    std::chrono::steady_clock::time_point lease_begin;
    int lookups = 0;                   // since it began to wait
    CheckpointId answer_checkpoint{};  // the newest of its answer
    int64_t last_checkpoint = 0;       // tokens of its newest, or of the one it began with
    int64_t junction = 0;  // up to where it shares a text without a checkpoint there; 0: nowhere
  };

  // prefixes: null where nothing is stored. Both outlive this object.
  RequestPrefixes(PageTables& tables, PrefixCache* prefixes, const Options& options);

  // Finds units for a request that may run next. seconds_per_token: what computing takes; 0: not
  // known yet.
  void look_up(RequestState& request, double seconds_per_token);
  // Its units are being read: it does not run until they are there or it has waited too long.
  bool loading(const RequestState& request) const;
  void wait(const RequestState& request, std::chrono::milliseconds time) const;
  // The tokens of a waiting request that are stored, in whichever tier.
  int64_t stored_tokens(const RequestState& request) const;

  struct Plan {
    int64_t cached = 0;   // with so many tokens it begins, or goes on
    int64_t stop_at = 0;  // where a chunk of its prompt has to end for a checkpoint; 0: anywhere
  };
  Plan plan(RequestState& request);
  PrefixCache::Attached begin(RequestState& request);

  // After so many of its next `count` tokens a checkpoint is made; 0: none.
  int64_t checkpoint_after(const RequestState& request, int64_t count) const;
  // Throws kResource where there is no room even without stored prefixes.
  void reserve(const RequestState& request, int64_t count);
  // A checkpoint of its first so many tokens; the newest of an answer replaces the one before.
  void store(RequestState& request, int64_t tokens);
  // waited: the device has come to the end of the step. Requests of the step still exist.
  void after_step(bool waited);
  void end(RequestState& request);

  // Makes units of those copies that have ended, or waits for all.
  void finish_saves(bool wait);

  // Engine::drop_prefixes(), for which every request forgets its units first, and the others.
  void forget_units(RequestState& request) const;
  void drop(PrefixTier last);
  void flush();
  int64_t save_text(const std::string& path, std::span<const int32_t> ids, std::string_view salt);
  void load_text(const std::string& path);

 private:
  UnitStore* units() const { return prefixes_ == nullptr ? nullptr : prefixes_->units(); }
  bool wants_checkpoint(const RequestState& request, int64_t tokens, int64_t before) const;
  int64_t next_stop(const RequestState& request, int64_t cached, int64_t before) const;
  void find_units(RequestState& request, double seconds_per_token);
  void save(RequestState& request, CheckpointId checkpoint);
  const PrefixChain& chain_of(RequestState& request) const;

  PageTables& tables_;
  PrefixCache* prefixes_;
  const Options options_;
  // Checkpoints of prompts that this step has made, of which units become.
  std::vector<std::pair<RequestState*, CheckpointId>> stored_;
  // Whose host memory copies to the device may still read.
  std::vector<std::unique_ptr<UnitStore::Lease>> leases_in_use_;
};

}  // namespace dsv4
