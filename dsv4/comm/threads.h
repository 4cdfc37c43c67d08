// Communicators of ranks that are threads of this process and compute in host memory.
//
// An exchange is two meetings of all ranks: after the first, every rank copies the parts of the
// others from their tensors into its own; after the second, all have copied, and the tensors may be
// written again. What is copied does not depend on timing, so results do not either.
//
// A rank waits for the others no longer than the limit. Which one is missing, that the ranks are at
// different exchanges, that shapes differ, or what a rank that failed said: the first of these ends
// the group. Every rank that waits, and every call made later, then throws RanksStopped.

#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/comm/communicator.h"

namespace dsv4 {

// What a rank throws because of another one; the text is that of the failure.
class RanksStopped : public Error {
 public:
  explicit RanksStopped(const std::string& why) : Error(ErrorCode::kUnsupported, why) {}
};

class ThreadRanks {
 public:
  ThreadRanks(int world, std::chrono::milliseconds limit);
  ~ThreadRanks();
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  int world() const { return static_cast<int>(here_.size()); }
  std::chrono::milliseconds limit() const { return limit_; }
  Communicator& rank(int r);

  // Ends the group, from any thread. Only the first reason counts.
  void abort(const std::string& why);
  std::string why() const;  // empty: the group works

 private:
  class Rank;
  // What a rank shows the others during an exchange.
  struct Shown {
    Place place{""};
    std::vector<TensorView> tensors;
  };

  // Waits until all ranks have called it as often as this one. Throws RanksStopped.
  void meet(int rank);
  void show(int rank, Shown shown);
  void check_shown() const;
  std::string missing() const;

  const std::chrono::milliseconds limit_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Shown> shown_;  // [world]; of a rank: written by it before a meeting, read after it

  mutable std::mutex mutex_;
  std::condition_variable met_;
  std::vector<bool> here_;    // at the next meeting
  std::vector<Place> place_;  // of each rank's latest exchange
  int arrived_ = 0;
  uint64_t meetings_ = 0;
  std::string why_;
};

}  // namespace dsv4
