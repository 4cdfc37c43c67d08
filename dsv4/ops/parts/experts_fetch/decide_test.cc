// decide() against a model of lists, and what must hold after every step whatever was chosen.

#include "dsv4/ops/parts/experts_fetch/decide.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "dsv4/ops/parts/experts_fetch/choices_test.h"

namespace dsv4::experts_fetch_kernel {
namespace {

struct Sizes {
  int experts, fixed, slots, transient;
};

// The state of a layer with its memory. Fixed experts are the first ones.
struct OwnedPlaces {
  std::vector<ExpertUse> uses;
  std::vector<int32_t> place_of, expert_in;
  uint32_t step = 0;
  std::vector<int64_t> totals;
  LayerPlaces layer;

  explicit OwnedPlaces(const Sizes& s)
      : uses(static_cast<size_t>(s.experts)),
        place_of(static_cast<size_t>(s.experts)),
        expert_in(static_cast<size_t>(s.fixed + s.slots + s.transient)),
        totals(static_cast<size_t>(s.experts)),
        layer{.experts = s.experts,
              .fixed = s.fixed,
              .slots = s.slots,
              .transient = s.transient,
              .uses = uses.data(),
              .place_of = place_of.data(),
              .expert_in = expert_in.data(),
              .step = &step,
              .totals = totals.data()} {
    layer.clear();
    for (int e = 0; e < s.fixed; ++e) layer.put(e, e);
  }
  OwnedPlaces(const OwnedPlaces&) = delete;
  OwnedPlaces& operator=(const OwnedPlaces&) = delete;
};

struct Outcome {
  std::vector<std::pair<int, int>> moves;  // expert, place
  int hits = 0, at_home = 0;
  bool operator==(const Outcome&) const = default;
};

// The policy, written a second time with maps and without its arithmetic.
class Model {
 public:
  explicit Model(const Sizes& s) : s_(s) {
    for (int e = 0; e < s.fixed; ++e) in_[e] = e;
  }

  Outcome step(const std::vector<int32_t>& ids) {
    ++now_;
    std::erase_if(in_, [&](const auto& at) { return at.first >= s_.fixed + s_.slots; });
    const std::set<int> chosen(ids.begin(), ids.end());
    for (int e = 0; e < s_.experts; ++e) {
      int64_t& count = count_[e];
      count -= (count + 128) / 256;
      if (chosen.contains(e)) count += 65536, last_[e] = now_;
    }
    Outcome outcome;
    for (const int e : chosen) {
      if (is_resident(e)) {
        ++outcome.hits;
      } else if (const int place = place_for(e, chosen); place >= 0) {
        in_[place] = e;
        outcome.moves.emplace_back(e, place);
      } else {
        ++outcome.at_home;
      }
    }
    return outcome;
  }

 private:
  bool is_resident(int expert) const {
    return std::ranges::any_of(in_, [&](const auto& at) { return at.second == expert; });
  }
  static int64_t lg(int64_t value) {
    int64_t power = 1, exponent = 0;
    while (2 * power <= value) power *= 2, ++exponent;
    return 256 * exponent + (value - power) * 256 / power;
  }
  int64_t score(int expert) {
    return 16 * lg(65536 + count_[expert]) - 256 * std::min<int64_t>(now_ - last_[expert], 1 << 20);
  }
  int place_for(int expert, const std::set<int>& chosen) {
    std::vector<std::pair<int64_t, int>> candidates;
    for (int p = s_.fixed; p < s_.fixed + s_.slots; ++p) {
      if (!in_.contains(p)) {
        candidates.emplace_back(INT64_MIN, p);
      } else if (!chosen.contains(in_[p])) {
        candidates.emplace_back(score(in_[p]), p);
      }
    }
    std::ranges::sort(candidates);
    if (!candidates.empty() && score(expert) >= candidates.front().first)
      return candidates.front().second;
    for (int p = s_.fixed + s_.slots; p < s_.fixed + s_.slots + s_.transient; ++p)
      if (!in_.contains(p)) return p;
    return -1;
  }

  Sizes s_;
  int64_t now_ = 0;
  std::map<int, int> in_;  // place to expert
  std::map<int, int64_t> count_, last_;
};

Outcome run(const LayerPlaces& layer, const std::vector<int32_t>& ids) {
  std::vector<Move> moves(static_cast<size_t>(layer.experts));
  const Decision d =
      decide(OneLane{}, layer, ids.data(), static_cast<int>(std::ssize(ids)), moves.data());
  EXPECT_EQ(d.impossible, 0);
  Outcome outcome{.moves = {}, .hits = d.hits, .at_home = d.at_home};
  for (int i = 0; i < d.moves; ++i)
    outcome.moves.emplace_back(moves[static_cast<size_t>(i)].expert,
                               moves[static_cast<size_t>(i)].place);
  return outcome;
}

// Returns what does not hold.
std::string broken(const LayerPlaces& layer, const std::set<int32_t>& chosen,
                   const std::vector<int32_t>& place_before, const Outcome& outcome) {
  for (int e = 0; e < layer.experts; ++e)
    if (layer.place_of[e] != kHome && layer.expert_in[layer.place_of[e]] != e)
      return "an expert has a place that holds another";
  for (int p = 0; p < layer.places(); ++p)
    if (layer.expert_in[p] != kEmpty && layer.place_of[layer.expert_in[p]] != p)
      return "an expert has two places";
  for (int e = 0; e < layer.fixed; ++e)
    if (layer.place_of[e] != e) return "a fixed expert has moved";
  std::set<int> taken;
  for (const auto& [expert, place] : outcome.moves) {
    if (place < layer.fixed) return "a move to a fixed place";
    if (!chosen.contains(expert)) return "an expert has come that was not chosen";
    if (!taken.insert(place).second) return "two moves to one place";
  }
  for (const int32_t e : chosen) {
    const int32_t before = place_before[static_cast<size_t>(e)];
    if (before >= 0 && before < layer.fixed + layer.slots && layer.place_of[e] != before)
      return "a step has lost an expert that it uses";
  }
  const int all = outcome.hits + static_cast<int>(outcome.moves.size()) + outcome.at_home;
  return all == std::ssize(chosen) ? "" : "the counts do not add up";
}

// next: the ids of each step
void check_stream(const Sizes& s, int steps, const std::function<std::vector<int32_t>()>& next) {
  SCOPED_TRACE(testing::Message() << s.experts << " experts, " << s.fixed << " fixed, " << s.slots
                                  << " slots, " << s.transient << " transient");
  OwnedPlaces owned(s);
  Model model(s);
  std::vector<int64_t> totals(static_cast<size_t>(s.experts));
  for (int i = 0; i < steps; ++i) {
    const std::vector<int32_t> ids = next();
    const std::vector<int32_t> before = owned.place_of;
    const Outcome got = run(owned.layer, ids);
    ASSERT_EQ(broken(owned.layer, {ids.begin(), ids.end()}, before, got), "") << "step " << i;
    ASSERT_EQ(got, model.step(ids)) << "step " << i;
    for (const int32_t e : std::set<int32_t>(ids.begin(), ids.end()))
      ++totals[static_cast<size_t>(e)];
  }
  EXPECT_EQ(owned.totals, totals);
}

// Choices of up to 6 experts by up to 4 tokens.
void check_choices(Rng& rng, const Sizes& s, double skew, double repeats, int steps) {
  test::Choices choices(rng, s.experts, skew, repeats);
  check_stream(s, steps, [&] {
    const int k = 1 + static_cast<int>(rng.below(std::min(s.experts, 6)));
    return choices.step(1 + static_cast<int>(rng.below(4)), k);
  });
}

void check_streams(double skew, double repeats) {
  Rng rng(static_cast<uint64_t>(1000 * skew + 7 * repeats + 1));
  for (int stream = 0; stream < 67; ++stream) {
    Sizes s{};
    s.experts = 1 + static_cast<int>(rng.below(24));
    s.fixed = static_cast<int>(rng.below(s.experts + 1)) / 2;
    s.slots = static_cast<int>(rng.below(s.experts - s.fixed + 2));
    s.transient = static_cast<int>(rng.below(5));
    check_choices(rng, s, skew, repeats, 5000);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// 335,000 steps each.
TEST(Decide, AgreesWithTheModelOnUniformChoices) {
  check_streams(0, 0);
}
TEST(Decide, AgreesWithTheModelOnZipfChoices) {
  check_streams(0.88, 0);
}
TEST(Decide, AgreesWithTheModelOnRepeatedChoices) {
  check_streams(0.8, 0.6);
}

// More experts than lanes and counts that are full.
TEST(Decide, AgreesWithTheModelOnALayerOfFlash) {
  Rng rng(5);
  check_choices(rng, {.experts = 256, .fixed = 0, .slots = 118, .transient = 16}, 1.2, 0.3, 2000);
}

// Sizes from a single slot to one for every expert, without and with fixed and transient places.
constexpr Sizes kSizes[] = {{.experts = 40, .fixed = 0, .slots = 1, .transient = 0},
                            {.experts = 40, .fixed = 3, .slots = 2, .transient = 4},
                            {.experts = 40, .fixed = 0, .slots = 33, .transient = 16},
                            {.experts = 40, .fixed = 5, .slots = 35, .transient = 0}};

// Experts in turn, which no cache with fewer places than experts can serve well.
TEST(Decide, AgreesWithTheModelOnAScan) {
  for (const Sizes& s : kSizes) {
    int32_t at = 0;
    check_stream(s, 3000, [&] {
      std::vector<int32_t> ids(4);
      for (int32_t& id : ids) id = at, at = (at + 1) % s.experts;
      return ids;
    });
  }
}

// One expert for long, then another, and rarely both.
TEST(Decide, AgreesWithTheModelOnOneExpert) {
  for (const Sizes& s : kSizes) {
    int step = 0;
    check_stream(s, 3000, [&] {
      const int32_t expert = 7 * (++step / 250) % s.experts;
      return step % 97 == 0 ? std::vector<int32_t>{0, expert} : std::vector<int32_t>{expert};
    });
  }
}

// Every expert in most steps, more than there are places.
TEST(Decide, AgreesWithTheModelOnAllExperts) {
  for (const Sizes& s : kSizes) {
    int step = 0;
    check_stream(s, 1000, [&] {
      std::vector<int32_t> ids(static_cast<size_t>(++step % 5 == 0 ? 3 : s.experts));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = (static_cast<int32_t>(i) + step) % s.experts;
      return ids;
    });
  }
}

// The plan's share of what comes over the link (plan/expert_plan.h). Transient places add nothing:
// they are empty when a step looks its experts up.
TEST(Decide, FindsUniformChoicesAsOftenAsExpertsAreKept) {
  for (const int slots : {20, 80}) {
    Rng rng(static_cast<uint64_t>(slots));
    OwnedPlaces owned({.experts = 128, .fixed = 4, .slots = slots, .transient = 24});
    test::Choices choices(rng, 128, 0, 0);
    int64_t hits = 0, chosen = 0;
    for (int i = 0; i < 6000; ++i) {
      const Outcome outcome = run(owned.layer, choices.step(2, 6));
      hits += outcome.hits;
      chosen += outcome.hits + outcome.at_home + std::ssize(outcome.moves);
    }
    EXPECT_NEAR(static_cast<double>(hits) / static_cast<double>(chosen), (4 + slots) / 128.0, 0.01);
  }
}

TEST(Decide, DoesNotDependOnTheOrderOfChoices) {
  Rng rng(11);
  const Sizes s{.experts = 40, .fixed = 2, .slots = 9, .transient = 3};
  OwnedPlaces one(s), other(s);
  test::Choices choices(rng, s.experts, 0.8, 0.2);
  for (int i = 0; i < 500; ++i) {
    std::vector<int32_t> ids = choices.step(3, 4);
    const Outcome first = run(one.layer, ids);
    std::ranges::reverse(ids);
    ids.push_back(ids[0]);
    ASSERT_EQ(first, run(other.layer, ids));
  }
  EXPECT_EQ(one.place_of, other.place_of);
}

TEST(Decide, LeavesOutIdsOfNoExpert) {
  for (const int32_t id : {4, -1, INT32_MIN, INT32_MAX}) {
    OwnedPlaces owned({.experts = 4, .fixed = 0, .slots = 4, .transient = 0});
    const int32_t ids[] = {3, id, 1};
    Move moves[4];
    const Decision d = decide(OneLane{}, owned.layer, ids, 3, moves);
    EXPECT_EQ(d.impossible, 1) << id;
    EXPECT_EQ(d.moves, 2) << id;
    EXPECT_EQ(owned.place_of, (std::vector<int32_t>{-1, 0, -1, 1})) << id;
  }
}

// An expert that is used now and then does not drive out one that is used often, and passes through
// a transient place.
TEST(Decide, AdmitsByScore) {
  OwnedPlaces owned({.experts = 3, .fixed = 0, .slots = 1, .transient = 1});
  for (int i = 0; i < 100; ++i) run(owned.layer, {0});
  EXPECT_EQ(run(owned.layer, {1}).moves, (std::vector<std::pair<int, int>>{{1, 1}}));
  EXPECT_EQ(run(owned.layer, {0}).hits, 1);
  int steps = 0;  // until expert 2 has won: it is worth 16 steps for each power of two
  while (owned.place_of[2] != 0 && steps < 500) run(owned.layer, {2}), ++steps;
  EXPECT_GT(steps, 10);
  EXPECT_LT(steps, 100);
}

// Hits of a stream that tools/expert_trace_test.py replays, too: the tool has the same policy.
TEST(Decide, HasTheHitsOfTheTool) {
  std::vector<int> hits;
  for (const int slots : {3, 8, 20}) {
    OwnedPlaces owned({.experts = 40, .fixed = 0, .slots = slots, .transient = 0});
    uint64_t state = 1;
    hits.push_back(0);
    for (int step = 0; step < 3000; ++step) {
      std::vector<int32_t> ids;
      for (int i = 0; i < 4; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const auto value = static_cast<int32_t>(state >> 40);
        ids.push_back(value % 3 == 0 ? value % 40 : value % 7);
      }
      hits.back() += run(owned.layer, ids).hits;
    }
  }
  EXPECT_EQ(hits, (std::vector<int>{3211, 7504, 8717}));
}

// Half of a count is gone after 177 steps.
TEST(Decide, ForgetsUses) {
  OwnedPlaces owned({.experts = 2, .fixed = 0, .slots = 1, .transient = 0});
  for (int i = 0; i < 3000; ++i) run(owned.layer, {0});
  const uint32_t full = owned.uses[0].count;
  EXPECT_NEAR(full, 256.0 * kOneUse, kOneUse);
  for (int i = 0; i < 177; ++i) run(owned.layer, {});
  EXPECT_NEAR(owned.uses[0].count, full / 2.0, full / 200.0);
  EXPECT_EQ(lg(1), 0);
  EXPECT_EQ(lg(3 << 15), 256 * 16 + 128);
}

}  // namespace
}  // namespace dsv4::experts_fetch_kernel
