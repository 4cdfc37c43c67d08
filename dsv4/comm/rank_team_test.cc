// Tasks on all ranks, and what becomes of a rank that throws, stalls, or comes back late.

#include "dsv4/comm/rank_team.h"

#include <gtest/gtest.h>

#include <atomic>

#include "dsv4/base/not_finite.h"
namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kLong{20000};

void meet(Communicator& ranks, int64_t layer) {
  ranks.gather({}, {"gather u", layer});
}

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RankTeam, RunsEveryTaskOnEveryRankInOrder) {
  for (int world = 1; world <= 8; ++world) {
    RankTeam team(world, kLong);
    std::vector<std::vector<int>> seen(static_cast<size_t>(world));
    for (int step = 0; step < 50; ++step) {
      team.run([&, step](Communicator& ranks) {
        meet(ranks, step);
        seen[static_cast<size_t>(ranks.id().rank)].push_back(step);
      });
    }
    for (const std::vector<int>& steps : seen) {
      ASSERT_EQ(steps.size(), 50U);
      for (int step = 0; step < 50; ++step) EXPECT_EQ(steps[static_cast<size_t>(step)], step);
    }
    EXPECT_FALSE(team.lost());
  }
}

// Tasks come while threads are awake, and after they have gone to sleep. A team that ends does not
// wait until they sleep.
TEST(RankTeam, ThreadsThatStayAwakeRunEveryTask) {
  std::atomic<int> ran = 0;
  const auto count = [&](Communicator&) { ++ran; };
  const auto begin = Clock::now();
  {
    RankTeam team(3, kLong, kLong);
    for (int step = 0; step < 100; ++step) team.run(count);
    EXPECT_EQ(ran, 300);
  }
  EXPECT_LT(Clock::now() - begin, kLong / 2);
  RankTeam team(2, kLong, milliseconds(1));
  for (int step = 0; step < 5; ++step) {
    team.run(count);
    std::this_thread::sleep_for(milliseconds(3));
  }
  EXPECT_EQ(ran, 310);
}

TEST(RankTeam, ARankThatThrowsEndsAll) {
  RankTeam team(4, kLong);
  const auto begin = Clock::now();
  const auto task = [](Communicator& ranks) {
    for (int64_t layer = 0; layer < 10; ++layer) {
      if (ranks.id().rank == 2 && layer == 5) fail(ErrorCode::kIo, "a page is gone");
      meet(ranks, layer);
    }
  };
  EXPECT_EQ(error_of([&] { team.run(task); }), "rank 2: a page is gone");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  EXPECT_FALSE(team.lost());
  EXPECT_EQ(error_of([&] { team.run(task); }), "rank 2: a page is gone") << "runs nothing more";
}

TEST(RankTeam, ErrorsKeepTheirTypes) {
  RankTeam numbers(3, kLong), foreign(2, kLong);
  EXPECT_THROW(numbers.run([](Communicator&) { throw NotFinite("logit 3 is nan"); }), NotFinite);
  EXPECT_EQ(error_of([&] {
              foreign.run([](Communicator& ranks) {
                if (ranks.id().rank == 1) throw std::runtime_error("from a library");
                meet(ranks, 0);
              });
            }),
            "rank 1: from a library");
}

// The stalled rank goes on after the team is gone; only memory that it owns may be used by it.
TEST(RankTeam, ARankThatStallsIsNamedAndGivenUp) {
  for (const bool in_exchange : {true, false}) {
    const auto awake = std::make_shared<std::atomic<bool>>(false);
    const auto begin = Clock::now();
    {
      RankTeam team(3, milliseconds(150));
      const std::string error = error_of([&] {
        team.run([awake, in_exchange](Communicator& ranks) {
          meet(ranks, 0);
          if (ranks.id().rank == 1) {
            std::this_thread::sleep_for(milliseconds(1500));
            *awake = true;
          }
          if (in_exchange) meet(ranks, 1);
        });
      });
      EXPECT_EQ(error, in_exchange ? "no answer from rank 1 for 0.15 s (gather u, layer 1)"
                                   : "no answer from rank 1 for 0.15 s (end of the step)");
      EXPECT_TRUE(team.lost());
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
    EXPECT_TRUE(any_rank_lost());
    while (!*awake) std::this_thread::sleep_for(milliseconds(10));
    std::this_thread::sleep_for(milliseconds(50));
  }
}

TEST(RankTeam, ARankThatIsLateWithinTheLimitIsWaitedFor) {
  RankTeam team(3, kLong);
  team.run([](Communicator& ranks) {
    if (ranks.id().rank == 1) std::this_thread::sleep_for(milliseconds(100));
    meet(ranks, 0);
    if (ranks.id().rank == 2) std::this_thread::sleep_for(milliseconds(100));
  });
  EXPECT_FALSE(team.lost());
}

}  // namespace
}  // namespace dsv4
