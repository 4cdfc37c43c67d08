// Generation: a request that was accepted, from its submission to the end of its answer. Lives on
// the I/O thread.

#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "dsv4/server/choice.h"
#include "dsv4/server/engine_thread.h"
#include "dsv4/server/http.h"
#include "dsv4/server/request_headers.h"

namespace dsv4 {

class Generation {
 public:
  using Clock = std::chrono::steady_clock;

  struct Origin {
    std::string request_id;  // the server's, which no other request has
    std::string client_id;   // that the client gave the request; empty: none
    std::string key;         // name of the API key
    std::string path;        // of the route
    std::optional<TraceContext> caller;
  };
  // What the server's log and metrics get when it is over.
  struct Report {
    Api api = Api::kChat;
    std::string request_id, key, finish;
    std::string user;       // that the client named
    std::string client_id;  // that the client gave the request; empty: none
    std::string path, model;
    std::optional<TraceContext> caller;
    std::chrono::system_clock::time_point begin;
    int status = 200;
    bool stream = false;
    Usage usage;
    Times times;
    ParseCounts parsed;
  };

  Generation(Prepared prepared, std::shared_ptr<const ServedModel> model,
             std::shared_ptr<Exchange> exchange, Origin origin);

  // The parameters of choice k's job.
  GenerateParams job_params(size_t choice) const;
  const std::vector<int32_t>& job_prompt(size_t choice) const;
  size_t choices() const { return choices_.size(); }
  void set_job(size_t choice, JobId job) { jobs_[choice] = job; }
  const std::vector<JobId>& jobs() const { return jobs_; }

  // Sends the head of a stream.
  void begin(HttpHeaders headers);
  void on_event(size_t choice, const EngineEvent& event);
  // What the events since the last call became.
  void flush();
  // Once a tick: the deadline, and a comment where a stream was silent for so long.
  void on_tick(Clock::time_point now, std::chrono::milliseconds keep_alive);
  // Ends with what there is: drain or deadline.
  void finish_early();
  void fail(const ApiError& error);
  // The client has left.
  void client_disconnected();

  bool over() const { return over_; }
  // Jobs of a choice that ended before the engine knew.
  bool wants_cancel(size_t choice) const { return choices_[choice]->ended(); }
  bool started() const { return started_; }
  double seconds_since_begin() const;
  // Ids of each prompt and each answer, for a log that wants them.
  const std::vector<std::vector<int32_t>>& prompts() const { return prepared_.prompts; }
  const std::vector<int32_t>& answer_ids(size_t choice) const { return choices_[choice]->ids(); }
  const Report& report() const { return report_; }
  const std::string& request_id() const { return report_.request_id; }
  // Seconds between the latest two tokens, for each token since the last call.
  std::vector<double> take_intervals() { return std::exchange(intervals_, {}); }

 private:
  void count_prediction(const DraftCounts& drafts);
  void end_if_complete();
  void close_report(int status, const std::string& finish);

  Prepared prepared_;
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<Exchange> exchange_;
  Usage usage_;
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<JobId> jobs_;
  const std::string shown_id_;  // the client's request id, or the server's
  HttpHeaders headers_;
  bool started_ = false, over_ = false;
  Clock::time_point begin_ = Clock::now(), last_write_ = begin_, last_token_;
  std::vector<double> intervals_;
  Report report_;
};

}  // namespace dsv4
