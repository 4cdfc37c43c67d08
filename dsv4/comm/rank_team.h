// A thread for each rank of a group, and the tasks that all of them run together.
//
// run() returns when every rank has ended its task. When a rank throws, the group is ended
// (threads.h), so the others stop at their next exchange, and run() throws what the first one
// threw, with its rank before the text. A rank that neither ends nor meets the others within the
// limit is named in the error and given up: its thread is left alone, and so is the memory that it
// uses (lost()). After an error the team runs nothing more.
//
// A thread that sleeps takes 50 us and more to wake. Where GPUs would be idle meanwhile, threads
// stay awake for a time after a task, which keeps a CPU busy for each of them.

#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "dsv4/comm/threads.h"

namespace dsv4 {

class RankTeam {
 public:
  using Task = std::function<void(Communicator&)>;

  // awake: how long threads look for the next task before they sleep
  RankTeam(int world, std::chrono::milliseconds limit, std::chrono::milliseconds awake = {});
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  int world() const;
  // The task is kept as long as a rank runs it.
  void run(Task task);
  // A rank did not come back: what its task uses must not be destroyed.
  bool lost() const;

 private:
  struct State;
  static void serve(const std::shared_ptr<State>& state, int rank);

  std::shared_ptr<State> state_;  // the threads own it too
  std::vector<std::thread> threads_;
};

// How long ranks on GPUs stay awake for the next step: longer than a decode step of many sequences,
// so that it is enqueued as soon as the ids of the one before are there. 0 where there are not two
// CPUs for each rank.
std::chrono::milliseconds awake_on_gpus(int world);

// Whether a team of this process has lost a rank. The program then ends without the destructors of
// static objects, which that rank may still use.
bool any_rank_lost();
// Another thread of this process may use it and may not come back.
void set_rank_lost();

}  // namespace dsv4
