// The order in which waiting requests begin (docs/spec/serving.md 4.5).
//
//   class   the priority, -2 .. 2, and one more for every 30 seconds of waiting: nothing starves
//   key     inside a class, start-time fair queueing over clients: one whose requests cost more
//           waits longer for its next one. The cost is that of its prompt, and four times its
//           answer; a client that was idle begins where the others are.
//   FIFO    inside a key and class
//
// A request of several jobs takes at most half of the places while jobs of other requests wait, and
// always leaves one free, so that the next request begins at once.
//
// Bookkeeping without threads or clocks: the caller says what time it is.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dsv4 {

class JobQueue {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Job {
    uint64_t id = 0;
    std::string key;      // the client
    std::string request;  // that the job is part of; empty: of none
    int priority = 0;
    int64_t prompt_tokens = 0;
    int64_t answer_tokens = 0;  // at most
  };

  void push(const Job& job, Time now);
  // Where jobs run: how many places there are, and how many of them each request has.
  struct Places {
    size_t count = SIZE_MAX;
    std::map<std::string, size_t> taken;
  };
  // Takes the next one; nothing where none may begin.
  std::optional<uint64_t> pop(Time now, const Places& places);
  std::optional<uint64_t> pop(Time now) { return pop(now, {}); }
  // False: it is not waiting.
  bool erase(uint64_t id);
  size_t size() const { return waiting_.size(); }
  size_t count(const std::string& key) const;  // of one client
  double longest_wait(Time now) const;         // seconds; 0: none waits

 private:
  struct Waiting {
    Job job;
    Time since;
    double start = 0;  // its virtual time, of the fair queueing
  };
  static int64_t class_of(const Waiting& one, Time now);
  bool may_begin(const Job& job, const Places& places) const;

  std::vector<Waiting> waiting_;          // in order of arrival
  std::map<std::string, double> finish_;  // virtual time at which a key's requests end
  double virtual_time_ = 0;               // start of the job that was taken last
};

}  // namespace dsv4
