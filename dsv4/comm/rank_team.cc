#include "dsv4/comm/rank_team.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>

#include "dsv4/base/cpu_count.h"
#include "dsv4/base/not_finite.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> lost_one{false};

// How long ranks have to notice that the group has ended.
constexpr std::chrono::milliseconds kGrace{500};

}  // namespace

struct RankTeam::State {
  State(int world, std::chrono::milliseconds limit, std::chrono::milliseconds awake_for)
      : ranks(world, limit), awake(awake_for), ended(static_cast<size_t>(world), true) {}

  ThreadRanks ranks;
  const std::chrono::milliseconds awake;
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<const Task> task;
  std::atomic<uint64_t> tasks = 0;  // handed out; changes with the mutex
  std::vector<bool> ended;          // [world]
  std::exception_ptr first;         // error
  bool first_follows = false;       // from that of another rank, which may come later
  std::atomic<bool> stop = false;   // changes with the mutex
  bool lost = false;

  bool all_ended() const {
    return std::ranges::all_of(ended, [](bool e) { return e; });
  }
  bool any_ended() const {
    return std::ranges::any_of(ended, [](bool e) { return e; });
  }
  // Until there is a task after `done` ones, none will come, or the thread may sleep.
  void stay_awake(uint64_t done) const;
  void run(const Task& run_task, int rank);
  void fail(std::exception_ptr error, const std::string& why, bool follows = false);
};

void RankTeam::State::stay_awake(uint64_t done) const {
  if (awake == awake.zero()) return;
  const auto end = Clock::now() + awake;
  while (tasks == done && !stop && Clock::now() < end) std::this_thread::yield();
}

// The first error is the one that run() throws; the others follow from it.
void RankTeam::State::fail(std::exception_ptr error, const std::string& why, bool follows) {
  {
    const std::lock_guard lock(mutex);
    if (!first || (first_follows && !follows)) {
      first = std::move(error);
      first_follows = follows;
    }
  }
  ranks.abort(why);
}

void RankTeam::State::run(const Task& run_task, int rank) {
  const auto named = [&](const std::exception& error) {
    return ranks.world() == 1 ? std::string(error.what())
                              : fmt::format("rank {}: {}", rank, error.what());
  };
  try {
    run_task(ranks.rank(rank));
  } catch (const RanksStopped& stopped) {
    fail(std::current_exception(), stopped.what(), /*follows=*/true);
  } catch (const NotFinite& error) {  // all ranks find it at once; callers catch its type
    fail(std::current_exception(), error.what());
  } catch (const Error& error) {
    fail(std::make_exception_ptr(Error(error.code(), named(error))), named(error));
  } catch (const std::exception& error) {
    fail(std::make_exception_ptr(Error(ErrorCode::kResource, named(error))), named(error));
  }
}

RankTeam::RankTeam(int world, std::chrono::milliseconds limit, std::chrono::milliseconds awake)
    : state_(std::make_shared<State>(world, limit, awake)) {
  for (int r = 0; r < world; ++r) threads_.emplace_back([state = state_, r] { serve(state, r); });
}

RankTeam::~RankTeam() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  for (size_t r = 0; r < threads_.size(); ++r) {
    bool back = false;
    {
      const std::lock_guard lock(state_->mutex);
      back = state_->ended[r];
    }
    back ? threads_[r].join() : threads_[r].detach();
  }
}

int RankTeam::world() const {
  return state_->ranks.world();
}

bool RankTeam::lost() const {
  const std::lock_guard lock(state_->mutex);
  return state_->lost;
}

std::chrono::milliseconds awake_on_gpus(int world) {
  return std::chrono::milliseconds(usable_cpus().threads() >= 2 * world ? 50 : 0);
}

bool any_rank_lost() {
  return lost_one;
}

void set_rank_lost() {
  lost_one = true;
}

void RankTeam::serve(const std::shared_ptr<State>& state, int rank) {
  uint64_t done = 0;
  for (;;) {
    std::shared_ptr<const Task> task;
    if (done > 0) state->stay_awake(done);
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->stop || state->tasks != done; });
      if (state->tasks == done) return;
      done = state->tasks;
      task = state->task;
    }
    state->run(*task, rank);
    task.reset();
    const std::lock_guard lock(state->mutex);
    state->ended[static_cast<size_t>(rank)] = true;
    state->changed.notify_all();
  }
}

void RankTeam::run(Task task) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.first) std::rethrow_exception(s.first);
  s.task = std::make_shared<const Task>(std::move(task));
  std::fill(s.ended.begin(), s.ended.end(), false);
  ++s.tasks;
  s.changed.notify_all();
  // Ranks that meet watch each other. The last part of the task, after its last exchange, is
  // watched from here: from the first end on. Before it there is no limit. A rank waits at an
  // exchange no longer than the limit, so ranks of which none ends and none gives up compute, all
  // of them, and how long that may take is not known here: a step may load experts from a disk or
  // stand in a debugger. For one that never ends the server has --watchdog-s, by which /ready says
  // "stalled".
  s.changed.wait(lock, [&] { return s.any_ended(); });
  const auto wait_for = [&](std::chrono::milliseconds time, bool errors_end) {
    s.changed.wait_until(lock, Clock::now() + time,
                         [&] { return s.all_ended() || (errors_end && s.first); });
  };
  wait_for(s.ranks.limit(), /*errors_end=*/true);
  if (!s.all_ended() && !s.first) {
    const auto late = std::ranges::find(s.ended, false) - s.ended.begin();
    const std::string why = fmt::format("no answer from rank {} for {} s (end of the step)", late,
                                        static_cast<double>(s.ranks.limit().count()) / 1000);
    s.first = std::make_exception_ptr(RanksStopped(why));
    s.ranks.abort(why);
  }
  if (!s.all_ended()) wait_for(kGrace, /*errors_end=*/false);
  if (!s.all_ended()) s.lost = lost_one = true;
  s.task.reset();
  if (s.first) std::rethrow_exception(s.first);
}

}  // namespace dsv4
