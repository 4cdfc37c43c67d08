// The public engine: token ids in, token ids out, one step() at a time. The layers above own text
// and threads.
//
//   submit --> waiting --(slot and pages)--> prefill, in chunks --> decode --> finished
//                 ^                                                   |
//                 +--------------(preempted: pages ran out)-----------+
//
// scheduler.h decides which requests run in a step. Requests stand in order of their priority, then
// of arrival, those that run first; when pages run out, the last running one is preempted. It keeps
// its answer and its place, and later computes its tokens again, from its last checkpoint on: the
// answer is the same. After three times it is not preempted again while others can be.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsv4/engine/check_numbers.h"
#include "dsv4/engine/device_memory.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/scheduler.h"
#include "dsv4/engine/step_time.h"
#include "dsv4/engine/token_constraint.h"
#include "dsv4/engine/token_terms.h"

namespace dsv4 {

struct EngineOptions {
  Numerics numerics = Numerics::kOfficial;
  bool deterministic = false;       // use only batch invariant implementations
  std::vector<ImplChoice> choices;  // tried before the order of the tables
  int64_t max_tokens = 4096;        // of one sequence at most: prompt and answer
  int max_sequences = 1;
  // Cache of all sequences together, at least max_tokens; 0: max_tokens for each of them, so that
  // no request is preempted.
  int64_t cache_tokens = 0;
  int64_t max_batch_tokens = 512;  // tokens of one step
  // Beside requests that decode, prompts get as many tokens of a step as are expected to fit this
  // time, and at least a few; 0: all that there is room for.
  std::chrono::milliseconds longest_step{0};
  int64_t long_prompt = SchedulerLimits{}.long_prompt;  // short prompts pass longer ones
  // Prefixes that later requests need not compute again (prefix_cache.h), each about
  // checkpoint_bytes() of cache_plan.h; 0: none.
  int prefix_checkpoints = 0;
  int64_t checkpoint_interval = 2048;  // tokens between checkpoints inside a long prompt
  // Checkpoints are also kept in host memory, of so many bytes, and in a folder
  // (cache/unit_store.h). 0 bytes: only in the cache itself. Wants prefix_checkpoints > 0.
  UnitStoreOptions tiers;
  std::string model_identity;  // fingerprint.h; of the model's files, for units that are kept
  // How long a request that would begin with units on the disk waits for them.
  std::chrono::milliseconds longest_load{2000};
  // Tokens of prompts that a step can score (GenerateParams::score_prompt), a row of logits each;
  // 0: none, and requests that want it are refused.
  int64_t max_scored_tokens = 0;
  bool check_numbers = false;  // look at the output of every op (check_numbers.h)
};

// The context of its steps, without device and observer; it reads `options` as long as it is used.
Context step_context(const EngineOptions& options);

// Bytes of the cache that an engine with these options allocates. Throws what its constructor
// throws for options that do not fit the model.
int64_t cache_bytes(const Model& model, const EngineOptions& options);

struct GenerateParams {
  SamplingParams sampling;
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;  // before them, no token of `stop` is chosen
  std::vector<int32_t> stop;   // ending the answer; not delivered
  std::vector<LogitBias> logit_bias;
  std::shared_ptr<TokenConstraint> constraint;  // null: every token may follow
  std::string salt;  // requests of different salts share no stored prefix
  int priority = 0;  // a request of a higher one is preempted after those of lower ones
  // At the next step after it the request ends with the tokens that it has (Finish::kLength), in
  // the queue too.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // Tokens of the prompt after which other texts may differ, as the end of a system prompt: places
  // of checkpoints, besides those of EngineOptions.
  std::vector<int64_t> forks;
  // The sink gets the log-probability of every token of the prompt but the first. No stored prefix
  // is used, since the logits are needed.
  bool score_prompt = false;
};

// kStop: also where the constraint has ended. kConstraintFailed: the constraint cannot say what may
// follow.
enum class Finish : uint8_t { kStop, kLength, kCancelled, kConstraintFailed };
const char* name(Finish finish);

enum class RequestId : uint64_t {};

enum class PrefixTier : uint8_t { kCache, kRam, kDisk };  // fastest first

// What a request has cost, when it finishes.
struct RequestStats {
  double queue_seconds = 0;    // from submit() until it first ran
  double prefill_seconds = 0;  // from then until its first token
  int64_t prompt_tokens = 0, answer_tokens = 0;
  // Of the prompt, when it first ran: found in the cache, and of them what units brought.
  int64_t cached_tokens = 0, ram_tokens = 0, disk_tokens = 0;
  int preemptions = 0;
};

// Called at the end of step(), on the thread that called step(), when the engine's state is
// consistent: a sink may submit and cancel. An exception of a sink leaves step(); the other sinks
// do not get the tokens of that step, but the engine can continue.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_token(RequestId id, const Sampled& token) = 0;
  virtual void on_finish(RequestId id, Finish why) = 0;
  virtual void on_stats(RequestId, const RequestStats&) {}  // just before on_finish()
  // Once, before the first token: how many tokens of the prompt were in the cache already.
  virtual void on_start(RequestId, int64_t /*cached_tokens*/) {}
  // With GenerateParams::score_prompt, before the first token: of the prompt's tokens, in order.
  virtual void on_prompt_token(RequestId, const Sampled& /*token*/) {}
};

struct EngineStats {
  int64_t cached_tokens = 0;                // prompt tokens that a stored prefix spared
  int64_t ram_tokens = 0, disk_tokens = 0;  // of them, those that units brought
  int64_t prefill_tokens = 0;  // prompt tokens that went through the network, and recomputed ones
  int64_t decode_tokens = 0;   // generated tokens that did, in steps without prompt tokens
  double prefill_seconds = 0, decode_seconds = 0;  // of steps with, and without, prompt tokens
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t pages = 0, pages_used = 0;  // of the cache, now; used: by running requests
  // Pages of one rate of entries (cache/page_tables.h); stored: only prefixes hold them.
  struct PageGroup {
    int tokens_per_entry = 1;
    bool window = false;  // entries of the newest tokens only
    int64_t used = 0, stored = 0, free = 0;
  };
  std::vector<PageGroup> groups;
  int64_t state_slots = 0, state_slots_used = 0;
  int64_t masks = 0;        // made of constraints
  double mask_seconds = 0;  // the time that took, during which a device computes
  int64_t checkpoints = 0;  // in the cache, now
  int64_t checkpoint_limit = 0;
  UnitStoreStats units;
};

class Engine {
 public:
  Engine(const Model& model, const EngineOptions& options);

  // Throws kBadInput when the prompt is empty, holds an id outside the vocabulary, or does not fit
  // the cache or the model's positions together with max_new_tokens (>= 1), or when a sampling
  // parameter is out of range (token_terms.h).
  RequestId submit(std::span<const int32_t> prompt, const GenerateParams& params, TokenSink& sink);
  // Takes effect at the next step(), so a sink may call it. Unknown or finished ids are ignored.
  void cancel(RequestId id);
  // Runs one batch. Returns false when no work is left. After a step that threw from inside the
  // network every further step throws, because the caches may be half-written. Throws NotFinite
  // with the op and the weight when NaN or infinity stops a request.
  bool step();
  EngineStats stats() const;
  // Throws unless the pages, the checkpoints and the units agree with the requests and with each
  // other. Tests call it between steps.
  void check_invariants() const;
  // Asks the driver: takes longer than stats().
  DeviceMemory device_memory() const;

  // Forgets every stored prefix of this tier and of the faster ones; a unit that is in host memory
  // only goes with it. Running requests keep theirs.
  void drop_prefixes(PrefixTier last = PrefixTier::kDisk);
  // Waits until what is stored is on the disk, as far as the disk can be written.
  void flush_prefixes();
  // A stored beginning of this text as one file, and back: a request that begins with it then finds
  // it. Wants tiers. save_prefix() returns its tokens; 0: nothing of the text is stored, and no
  // file is written. load_prefix() throws kBadInput for a file that is damaged or of another model.
  int64_t save_prefix(const std::string& path, std::span<const int32_t> ids,
                      std::string_view salt = {});
  void load_prefix(const std::string& path);

 private:
  struct Request {
    RequestId id{};
    std::vector<int32_t> tokens;  // the prompt and the answer so far
    GenerateParams params;
    TokenSink* sink = nullptr;
    TokenTerms terms;
    TokenConstraint::State state = 0;  // of params.constraint
    bool blocked = false;              // the constraint has failed
    SeqId seq{};                       // while it runs
    int64_t cached = 0;                // tokens in the cache
    bool started = false;
    int64_t generated = 0;
    int64_t scored = 0;  // tokens of the prompt that the sink has, with score_prompt
    bool cancelled = false;
    PrefixChain chain;                        // of its tokens; with tiers only
    std::unique_ptr<UnitStore::Lease> lease;  // while it waits: of the units it would begin with
    std::chrono::steady_clock::time_point lease_begin;
    int lookups = 0;                   // since it began to wait
    CheckpointId answer_checkpoint{};  // the newest of its answer
    int64_t last_checkpoint = 0;       // tokens of its newest, or of the one it began with
    int64_t junction = 0;  // up to where it shares a text without a checkpoint there; 0: nowhere
    std::chrono::steady_clock::time_point submitted, first_run;
    RequestStats stats;

    void advance(int32_t token);  // of the constraint
    // Masks the last row, from which the next token comes; true where the constraint has made it.
    bool restrict(SampleLists& lists);
    int64_t length() const { return static_cast<int64_t>(tokens.size()); }
    bool scoring() const { return params.score_prompt && scored + 1 < length() - generated; }
    bool decoding() const { return generated > 0 && cached + 1 == length(); }
    bool before(const Request& other) const;  // in the order of the scheduler
  };
  struct Batch {
    struct Chunk {
      Request* request;
      int64_t count;
    };
    std::vector<Work> work;
    std::vector<Chunk> chunks;   // of the work, in its order
    int64_t prefill_tokens = 0;  // in chunks of requests that do not decode
    struct Row {                 // of logits
      Request* request;
      int64_t scores;  // the token of the prompt that the row predicts; 0: a new token is drawn
    };
    std::vector<Row> rows;
  };
  // What a sink receives at the end of the step.
  struct Event {
    TokenSink* sink = nullptr;
    RequestId id{};
    bool starts = false;
    int64_t cached_tokens = 0;
    bool has_token = false;
    bool of_prompt = false;  // the token
    Sampled token;
    bool finished = false;
    Finish why{};
    RequestStats stats;  // of a finished one
  };
  void sort_requests();
  void end_early(std::vector<Event>& events);  // those cancelled, and those whose time is up
  // Finds units for the requests that may run next.
  void look_up_units();
  void look_up_units(Request& request);
  void move_last(const std::function<bool(const Request&)>& wanted);
  bool move_loading_last();
  void move_long_last();
  bool loading(const Request& request) const;
  Schedule plan_step();
  int64_t max_prompt_tokens() const;
  // Opens and closes sequences so that the first `num_running` requests run.
  void set_running(size_t num_running, std::vector<Event>& events);
  // Whether a checkpoint is wanted after so many tokens of its prompt, when the one before it is
  // after `before`.
  bool wants_checkpoint(const Request& request, int64_t tokens, int64_t before) const;
  // Where a chunk of the request's prompt has to end for a checkpoint; 0: anywhere.
  int64_t next_stop(const Request& request, int64_t cached, int64_t before) const;
  // After so many of its next `count` tokens a checkpoint is made; 0: none.
  int64_t checkpoint_after(const Request& request, int64_t count) const;
  // The stored prefix with which a request would begin: all but its last token at most.
  std::span<const int32_t> reusable(const Request& request) const;
  // Makes room for the batch, at the cost of stored prefixes.
  void reserve(const Batch& batch);
  // A checkpoint of its first so many tokens; the newest of an answer replaces the one before.
  void store_prefix(Request& request, int64_t tokens);
  // Makes units of checkpoints that stay.
  void save_units(Request& request, CheckpointId checkpoint);
  void stop_running(Request& request);
  UnitStore* units() { return executor_.units(); }
  const UnitStore* units() const { return executor_.units(); }
  Batch make_batch(const Schedule& plan);
  // index: its place in the order of arrival
  std::list<Request>::iterator remove(std::list<Request>::iterator at, size_t index);
  void run_batch(std::vector<Event>& events);
  std::vector<Sampled> compute(const Batch& batch);
  // Its finish, with what it cost.
  static void finish(const Request& request, Finish why, Event& event);
  std::vector<Sampled> sample(const Batch& batch);
  Context context() const;
  // Gives each request its token and removes finished requests.
  void deliver(const Batch& batch, std::vector<Sampled> tokens, std::vector<Event>& events);
  // Appends the token to the request and returns what its sink receives.
  static Event accept(Request& request, Sampled token);

  const Model& model_;
  EngineOptions options_;
  std::unique_ptr<CheckNumbers> check_;
  Executor executor_;
  std::list<Request> requests_;  // those that run, then the others, each in order
  size_t num_running_ = 0;       // the first so many run
  // Checkpoints of prompts that this step has made, of which units become.
  std::vector<std::pair<Request*, CheckpointId>> stored_;
  // Whose host memory copies to the device may still read.
  std::vector<std::unique_ptr<UnitStore::Lease>> leases_in_use_;
  uint64_t next_id_ = 1;
  bool broken_ = false;
  StepTime step_time_;
  EngineStats stats_;
};

}  // namespace dsv4
