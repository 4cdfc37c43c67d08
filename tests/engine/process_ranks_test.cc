// An engine whose ranks are processes, here threads that meet at sockets: what a rank throws in the
// middle of a step, of whatever type, is what all of them end with.
// tests/cli/rank_processes_test.py has processes.

#include <gtest/gtest.h>
#include <omp.h>
#include <unistd.h>

#include <new>
#include <stdexcept>
#include <thread>

#include "dsv4/engine/engine.h"
#include "dsv4/engine/process_rank.h"
#include "dsv4/engine/rank_messages.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

// A rank of the bundled model that has met the other one.
class Rank {
 public:
  Rank(const std::shared_ptr<const ModelSpec>& spec, int rank, int meeting)
      : model_(spec, ShardId{rank, 2}) {
    const LaunchedRank self{.id = {rank, 2},
                            .local_rank = rank,
                            .meeting = fmt::format("process_ranks {} {}", getpid(), meeting)};
    model_.join(std::make_shared<RankProcesses>(self, RankIdentity{"test", "demo", "cpu"},
                                                std::chrono::seconds(60)));
  }
  Model& model() { return model_; }

 private:
  Model model_;
};

// body(rank) on a thread for each of two ranks.
template <class Body>
void on_both(const Body& body) {
  static int meetings = 0;
  const int meeting = ++meetings;
  const auto spec = Model::load("models/demo").shared_spec();
  std::thread other([&] {
    Rank rank(spec, 1, meeting);
    body(rank.model());
  });
  {
    Rank rank(spec, 0, meeting);
    body(rank.model());
  }
  other.join();
}

struct Ignored : TokenSink {
  void on_token(RequestId, const Sampled&) override {}
  void on_finish(RequestId, Finish) override {}
};

// The lines of both ranks, when one throws before its third step.
std::vector<std::string> lines_of_fault(int failing, const std::function<void()>& fault) {
  std::vector<std::string> lines(2);
  const RankOptions options{.before_step = [&](ShardId id, int64_t step) {
    if (id.rank == failing && step == 3) fault();
  }};
  on_both([&](Model& model) {
    const auto rank = static_cast<size_t>(model.id().rank);
    try {
      if (rank == 1) return follow_rank_0(model, {}, options);
      Engine engine(model, {.max_tokens = 100, .ranks = options});
      Ignored sink;
      engine.submit(std::vector<int32_t>{1, 2, 3}, {.max_new_tokens = 20}, sink);
      while (engine.step()) {
      }
    } catch (const std::exception& error) {
      lines[rank] = error.what();
    }
  });
  return lines;
}

TEST(ProcessRanks, WhateverARankThrowsAllSayIt) {
  for (const int failing : {0, 1}) {
    for (const std::string& line : lines_of_fault(failing, [] { throw std::bad_alloc(); }))
      EXPECT_EQ(line, fmt::format("rank {}: out of memory", failing));
    for (const std::string& line :
         lines_of_fault(failing, [] { throw std::runtime_error("from a library"); }))
      EXPECT_EQ(line, fmt::format("rank {}: from a library", failing));
    for (const std::string& line :
         lines_of_fault(failing, [] { fail(ErrorCode::kIo, "page {} is gone", 3); }))
      EXPECT_EQ(line, fmt::format("rank {}: page 3 is gone", failing));
  }
}

TEST(ProcessRanks, WorkThatThrowsLeavesTheThreadsOfTheCaller) {
  on_both([](Model& model) {
    omp_set_num_threads(6);
    ProcessRank rank(model, {}, {}, std::chrono::seconds(10));
    int during = 0;
    EXPECT_THROW(rank.run([&](Runner&) {
      during = omp_get_max_threads();
      fail(ErrorCode::kIo, "page {} is gone", 3);
    }),
                 Error);
    EXPECT_EQ(during, 3);
    EXPECT_EQ(omp_get_max_threads(), 6);
  });
}

}  // namespace
}  // namespace dsv4
