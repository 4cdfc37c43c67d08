// Threads of ranks that enqueue on one GPU, one at a time, in the order of their ranks: each until
// it has enqueued an exchange, or the end of its step.
//
// So no rank is more than one exchange ahead of another, and what they wait for is always enqueued.
// All ranks make the same calls. A rank that waits longer than the limit, or after stop(), throws
// RanksStopped, and so does every other one then.

#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

namespace dsv4 {

class Turns {
 public:
  Turns(int world, std::chrono::milliseconds limit) : world_(world), limit_(limit) {}

  // Waits for the turn of this rank. Throws as above.
  void begin(int rank);
  // Gives the turn to the next rank and waits until it comes back.
  void pass(int rank);
  // Gives the turn to the next rank.
  void end(int rank);
  void stop();

 private:
  void wait(std::unique_lock<std::mutex>& lock, int rank);

  const int world_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = 0;
  std::string why_;  // not empty: stopped
};

}  // namespace dsv4
