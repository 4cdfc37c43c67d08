// Turns of threads: one at a time, in the order of ranks, whatever the delays; a rank that does not
// come, and one that fails.

#include "dsv4/comm/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/comm/threads.h"

namespace dsv4 {
namespace {

using std::chrono::milliseconds;

void run_threads(int world, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Turns, OneAtATimeInOrder) {
  for (const int world : {1, 2, 5}) {
    constexpr int kSteps = 6, kExchanges = 4;
    Turns turns(world, milliseconds(20000));
    std::vector<int> order;  // written in turns alone
    std::atomic<int> inside{0};
    run_threads(world, [&](int rank) {
      Rng rng(static_cast<uint64_t>(rank));
      const auto work = [&] {
        EXPECT_EQ(inside++, 0);
        order.push_back(rank);
        if (rng.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        --inside;
      };
      for (int step = 0; step < kSteps; ++step) {
        if (rng.below(3) == 0) std::this_thread::sleep_for(milliseconds(1));
        turns.begin(rank);
        work();
        for (int e = 0; e < kExchanges; ++e) turns.pass(rank), work();
        turns.end(rank);
      }
    });
    ASSERT_EQ(std::ssize(order), world * kSteps * (kExchanges + 1));
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], static_cast<int>(i) % world) << i;
  }
}

TEST(Turns, ARankThatDoesNotComeIsNamed) {
  Turns turns(3, milliseconds(100));
  std::vector<std::string> why(3);
  run_threads(3, [&](int rank) {
    if (rank == 1) return;
    try {
      turns.begin(rank);
      turns.pass(rank);
    } catch (const RanksStopped& stopped) {
      why[static_cast<size_t>(rank)] = stopped.what();
    }
  });
  // Rank 2 begins to wait when rank 0 still has the turn, perhaps, and gives up on rank 1.
  for (const size_t rank : {0u, 2u})
    EXPECT_EQ(why[rank], "no answer from rank 1 for 0.1 s (enqueueing)");
  EXPECT_THROW(turns.begin(1), RanksStopped) << "and so does every later call";
}

TEST(Turns, AStopEndsAll) {
  Turns turns(2, milliseconds(20000));
  std::atomic<int> stopped{0};
  run_threads(2, [&](int rank) {
    try {
      turns.begin(rank);
      if (rank == 0) turns.stop();
      turns.pass(rank);
    } catch (const RanksStopped&) {
      ++stopped;
    }
  });
  EXPECT_EQ(stopped, 2);
}

}  // namespace
}  // namespace dsv4
