// The public engine: token ids in, token ids out, one step() at a time. The layers above own text
// and threads.
//
//   submit --> waiting --(slot and pages)--> prefill, in chunks --> decode --> finished
//                 ^                                                   |
//                 +--------------(preempted: pages ran out)-----------+
//
// scheduler.h decides which requests run in a step, request_prefixes.h what they find stored and
// leave stored. Requests stand in order of their priority, then of arrival, those that run first;
// when pages run out, the last running one is preempted. It keeps its answer and its place, and
// later computes its tokens again, from its last checkpoint on: the answer is the same. After three
// times it is not preempted again while others can be, and once 32 later requests have begun while
// a request waited it is the next one: no priority starves it.

#pragma once

#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsv4/engine/check_numbers.h"
#include "dsv4/engine/device_memory.h"
#include "dsv4/engine/engine_options.h"
#include "dsv4/engine/engine_stats.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/expert_stats.h"
#include "dsv4/engine/request.h"
#include "dsv4/engine/request_prefixes.h"
#include "dsv4/engine/request_state.h"
#include "dsv4/engine/scheduler.h"
#include "dsv4/engine/step_time.h"

namespace dsv4 {

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
  MemoryUse device_memory() const;
  // These wait for the device, and copy from it.
  ExpertStats expert_stats() const;
  // Throws when a rank that is a process has ended: no step would run.
  void check_ranks() { executor_.check_ranks(); }
  std::vector<RankStats> rank_stats() const { return executor_.rank_stats(); }

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
  using Request = RequestState;
  struct Batch {
    struct Chunk {
      Request* request;
      int64_t count;       // of its tokens; in a round, its newest one and the drafts
      bool round = false;  // whose tokens are committed as they are accepted
    };
    std::vector<Work> work;
    std::vector<Chunk> chunks;   // of the work, in its order
    int64_t prefill_tokens = 0;  // in chunks of requests that do not decode
    struct Row {                 // of logits
      Request* request;
      int64_t scores;  // the token of the prompt that the row predicts; 0: a new token is drawn
      size_t in_round = 0;  // of a new token: the drafts before it in this step
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
    bool later = false;  // not the first of its round
    bool has_drafts = false;
    DraftCounts drafts;
    bool finished = false;
    Finish why{};
    RequestStats stats;  // of a finished one
  };
  void sort_requests();
  void end_early(std::vector<Event>& events);  // those cancelled, and those whose time is up
  void look_up_units();                        // for the requests that may run next
  void move_last(const std::function<bool(const Request&)>& wanted);
  bool move_loading_last();
  void move_long_last();
  Schedule plan_step();
  int64_t max_prompt_tokens(std::span<const ScheduledRequest> requests) const;
  // Tokens of prompts that this step scores.
  int64_t max_scored_tokens(const Schedule& plan, std::span<Request* const> running) const;
  // Opens and closes sequences so that the first `num_running` requests run.
  void set_running(size_t num_running, std::vector<Event>& events);
  void begin(Request& request, std::vector<Event>& events);
  Batch make_batch(const Schedule& plan);
  // Cuts the drafts of the planned requests to what there is room for, and lets the drafter propose
  // its own.
  void choose_drafts(const Schedule& plan, const Batch& batch);
  void add_work(Batch& batch, Batch::Chunk& chunk);
  // index: its place in the order of arrival
  std::list<Request>::iterator remove(std::list<Request>::iterator at, size_t index);
  void run_batch(std::vector<Event>& events);
  std::vector<Sampled> compute(const Batch& batch);
  // Its finish, with what it cost.
  static void finish(const Request& request, Finish why, Event& event);
  std::vector<Sampled> sample(const Batch& batch);
  Context context() const;
  // Gives each request its tokens and removes finished requests. Both return the rows whose tokens
  // were drawn for an answer.
  int64_t deliver(const Batch& batch, std::vector<Sampled> tokens, std::vector<Event>& events);
  // One row, or those of a round up to the first that is not accepted.
  int64_t deliver_round(Request& request, std::span<Sampled> tokens, std::vector<Event>& events);
  void commit_one(Request& request);
  void send(const std::vector<Event>& events);
  // Appends the token to the request and returns what its sink receives.
  static Event accept(Request& request, Sampled token);

  const Model& model_;
  EngineOptions options_;
  std::unique_ptr<CheckNumbers> check_;
  Executor executor_;
  RequestPrefixes prefixes_;
  std::list<Request> requests_;  // those that run, then the others, each in order
  size_t num_running_ = 0;       // the first so many run
  uint64_t next_id_ = 1;
  bool broken_ = false;
  StepTime step_time_;
  StepTime prompt_time_;  // of the steps with prompts
  Speculation speculation_;
  std::vector<RequestId> cancelled_;  // by sinks, since the events of this step are sent
  EngineStats stats_;
};

}  // namespace dsv4
