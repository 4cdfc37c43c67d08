#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"

#include <gtest/gtest.h>

#include <numeric>

#include "dsv4/ops/parts/experts_fetch/experts_fetch_case.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using test::FetchCase;
using test::FetchShape;

void check_steps(const FetchShape& s, int steps) {
  FetchCase c(s);
  Rng rng(9);
  test::Choices choices(rng, static_cast<int>(s.experts), 0.88, 0.3);
  int64_t chosen = 0;
  for (int i = 0; i < steps; ++i) {
    const std::vector<int32_t> ids = choices.step(static_cast<int>(s.t), static_cast<int>(s.k));
    chosen += std::ssize(std::set<int32_t>(ids.begin(), ids.end()));
    c.choose(ids);
    c.arena.freeze();
    const auto* place_of = c.args.place_of.as<int32_t>();
    const std::vector<int32_t> before(place_of, place_of + s.experts);
    experts_fetch({}, c.args);
    c.arena.verify();
    ASSERT_EQ(c.broken(), "") << "step " << i;
    for (int64_t e = 0; e < s.experts; ++e) {
      const int32_t was = before[static_cast<size_t>(e)];
      // What a transient place had goes home, and may come back to another or the same one.
      const bool stays = was == place_of[e] && was < s.fixed + s.slots;
      ASSERT_EQ(c.args.turn_of.as<int32_t>()[e],
                stays && was != experts_fetch_kernel::kHome ? 0 : 1)
          << "expert " << e << " step " << i;
    }
    for (const int32_t e : ids) {
      const int32_t place = c.args.place_of.as<int32_t>()[e];
      const bool is_home = c.args.places.as<int64_t>()[e] == c.args.homes.as<int64_t>()[e];
      ASSERT_EQ(place == experts_fetch_kernel::kHome, is_home) << "expert " << e;
    }
  }
  const auto* counters = c.args.counters.as<int64_t>();
  EXPECT_EQ(counters[0] + counters[1] + counters[2], chosen);
  const auto* totals = c.args.totals.as<int64_t>();
  EXPECT_EQ(std::accumulate(totals, totals + s.experts, int64_t{0}), chosen);
  EXPECT_GT(counters[0], 0);
  EXPECT_EQ(counters[3], 0);
}

// Everything fits; slots only; transient places that run out; one slot; none.
TEST(ExpertsFetch, EveryAddressHoldsItsExpert) {
  check_steps({.experts = 12, .fixed = 3, .slots = 9, .transient = 0, .bytes = 100, .t = 2, .k = 3},
              200);
  check_steps({.experts = 40, .fixed = 0, .slots = 13, .transient = 0, .bytes = 48, .t = 1, .k = 6},
              400);
  check_steps({.experts = 40, .fixed = 5, .slots = 8, .transient = 3, .bytes = 33, .t = 4, .k = 6},
              400);
  check_steps({.experts = 9, .fixed = 0, .slots = 1, .transient = 1, .bytes = 16, .t = 1, .k = 4},
              400);
  check_steps({.experts = 9, .fixed = 2, .slots = 0, .transient = 2, .bytes = 16, .t = 1, .k = 4},
              200);
}

TEST(ExpertsFetch, AStepWithoutTokens) {
  FetchCase c({.experts = 4, .fixed = 1, .slots = 1, .transient = 0, .bytes = 16, .t = 0, .k = 2});
  experts_fetch({}, c.args);
  EXPECT_EQ(c.broken(), "");
  EXPECT_EQ(c.args.step.as<int32_t>()[0], 1);
}

TEST(ExpertsFetch, CountsStepsWithIdsOfNoExpert) {
  FetchCase c({.experts = 4, .fixed = 0, .slots = 4, .transient = 0, .bytes = 16, .t = 1, .k = 2});
  c.choose({2, 4});
  experts_fetch({}, c.args);
  EXPECT_EQ(c.broken(), "");
  EXPECT_EQ(c.args.counters.as<int64_t>()[3], 1);
}

TEST(ExpertsFetch, ReportsErrors) {
  FetchCase c({.experts = 4, .fixed = 1, .slots = 2, .transient = 0, .bytes = 16, .t = 1, .k = 2});
  const auto error = [&](const auto& change) {
    ExpertsFetchArgs args = c.args;
    change(args);
    return test::error_of(ErrorCode::kInvalidArgument, [&] { experts_fetch({}, args); });
  };
  EXPECT_TRUE(test::says(error([](ExpertsFetchArgs& a) { a.fixed = 4; }), "4 fixed of 3 places"));
  EXPECT_EQ(error([](ExpertsFetchArgs& a) { a.place_of = a.place_of.slice(0, 0, 3); }),
            "place_of: want [e=4] I32, got [3] I32");
}

}  // namespace
}  // namespace dsv4
