// EngineThread: the one thread that calls an engine. Requests wait here, in the order of JobQueue,
// until the engine has a sequence free; what the engine reports leaves in one batch per step.
//
//   I/O thread --submit, cancel--> mailbox --> engine thread: step()
//   engine thread --deliver(events)--> I/O thread
//
// All methods may be called from any thread.

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "dsv4/server/engine_port.h"
#include "dsv4/server/job_queue.h"

namespace dsv4 {

enum class JobId : uint64_t {};

struct EngineEvent {
  enum class Kind { kStarted, kPromptToken, kDrafts, kToken, kFinished, kFailed };
  JobId job{};
  Kind kind = Kind::kToken;
  Sampled token;                  // kToken, kPromptToken
  DraftCounts drafts;             // kDrafts: of the step whose tokens follow
  Finish finish = Finish::kStop;  // kFinished
  int64_t cached_tokens = 0;      // kStarted: of the prompt, that a stored prefix spares
};

class EngineThread {
 public:
  using Loader = std::function<std::unique_ptr<EnginePort>()>;
  using Deliver = std::function<void(std::vector<EngineEvent>)>;

  struct State {
    bool ready = false, broken = false;
    std::string error;  // of loading, or of the step that broke the engine
    bool load_failed = false;
    size_t queued = 0, running = 0;
    int64_t queued_tokens = 0;
    double seconds_in_step = 0;  // of the step that is running now; 0 between steps
    EngineStats stats;
    MemoryUse device_memory;  // this and what follows: at most some seconds old
    ExpertStats experts;
    std::vector<RankStats> ranks;
  };

  // Both are called on the engine thread. The loader's engine runs one token as a canary before it
  // counts as ready. An empty batch of events says that the state has changed.
  EngineThread(Loader loader, Deliver deliver);
  ~EngineThread();  // what runs is dropped without an event

  // What decides when a job begins: the client that it came from, its priority, and the request
  // that it is part of.
  struct QueueInfo {
    std::string key;
    int priority = 0;
    std::string request;
  };
  JobId submit(std::vector<int32_t> prompt, GenerateParams params, const QueueInfo& info);
  // The job ends with kFinished and Finish::kCancelled.
  void cancel(JobId job);
  // Before the next step, the engine forgets every stored prefix.
  void drop_prefixes();
  State state() const;
  size_t queued_of(const std::string& key) const;  // jobs of this client that wait

 private:
  struct Job : TokenSink {
    void on_start(RequestId id, int64_t cached_tokens) override;
    void on_prompt_token(RequestId id, const Sampled& token) override;
    void on_drafts(RequestId id, const DraftCounts& drafts) override;
    void on_token(RequestId id, const Sampled& token) override;
    void on_finish(RequestId id, Finish why) override;

    JobId id{};
    std::string part_of;  // QueueInfo::request
    std::vector<int32_t> prompt;
    GenerateParams params;
    RequestId request{};
    std::vector<EngineEvent>* events = nullptr;
    bool finished = false;
  };

  void run(const Loader& loader);
  bool load(const Loader& loader);
  void serve();
  bool wait_for_work();
  void check_ranks();
  void refresh_device();
  void apply_cancellations(std::vector<EngineEvent>& events);
  std::unique_ptr<Job> take_from_queue(JobId id);
  std::unique_ptr<Job> next_job();
  void drop_if_wanted();
  void admit(std::vector<EngineEvent>& events);
  void step(std::vector<EngineEvent>& events);
  void fail_all(std::vector<EngineEvent>& events, const std::string& error);

  Deliver deliver_;
  std::unique_ptr<EnginePort> engine_;                  // the engine thread's
  std::map<JobId, std::unique_ptr<Job>> running_;       // the engine thread's
  std::chrono::steady_clock::time_point next_refresh_;  // the engine thread's

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  JobQueue order_;
  std::map<JobId, std::unique_ptr<Job>> queue_;  // those in order_
  std::vector<JobId> cancelled_;
  State state_;
  std::chrono::steady_clock::time_point step_begin_;
  bool in_step_ = false, stopping_ = false, drop_prefixes_ = false;
  uint64_t next_job_ = 1;

  std::jthread thread_;
};

}  // namespace dsv4
