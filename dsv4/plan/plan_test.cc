#include "dsv4/plan/plan.h"

#include <gtest/gtest.h>

#include <tuple>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/formats/index_layout.h"
#include "dsv4/model/released.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

// The lists are long: each is made once.
const ConvertList& release_list(const std::string& release, const std::string& experts, bool mtp) {
  static std::map<std::tuple<std::string, std::string, bool>, ConvertList> made;
  ConvertList& list = made[{release, experts, mtp}];
  if (list.items.empty()) {
    const ModelConfig config = released_config(release);
    list = convert_list(stored_tensors(official_tensor_list(config, mtp)),
                        recipe_of_flags(experts, ""), config.o_groups);
  }
  return list;
}

MemoryPlan plan_of(const std::string& release, const std::string& experts, bool mtp,
                   const PlanRequest& request = {.context = 131072}) {
  return plan_memory(released_config(release), release_list(release, experts, mtp), request);
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB);
}

// Sizes that the design was made from, calculated independently of this code: GiB, given to three
// or four digits (hence the half of the last one beside 0.5 %).
TEST(Plan, WeightsOfTheReleases) {
  struct {
    const char *release, *experts;
    double plain, with_mtp;
  } const rows[] = {{"flash", "k2", 80.8, 82.6},   {"flash", "k3", 113.1, 115.6},
                    {"flash", "", 145.3, 148.6},   {"flash", "k4", 145.3, 148.6},
                    {"flash", "k5", 177.6, 181.6}, {"flash", "fp8", 266, 272},
                    {"pro", "k2", 432, 439},       {"pro", "k3", 612, 622},
                    {"pro", "", 792, 805},         {"pro", "k5", 972, 988}};
  for (const auto& row : rows) {
    const WeightSummary weights = plan_of(row.release, row.experts, true).weights;
    const int64_t all = weights.total.bytes, plain = all - weights.parts.at("mtp").bytes;
    EXPECT_NEAR(gib(all), row.with_mtp, 0.005 * row.with_mtp) << row.release << row.experts;
    EXPECT_NEAR(gib(plain), row.plain, 0.005 * row.plain) << row.release << row.experts;
  }
}

TEST(Plan, PartsAndFormatsAddUp) {
  for (const char* experts : {"", "k3"}) {
    const WeightSummary weights = plan_of("flash", experts, true).weights;
    for (const auto* table : {&weights.parts, &weights.formats, &weights.dtypes}) {
      Amount sum;
      for (const auto& [name, amount] : *table) {
        sum.tensors += amount.tensors;
        sum.bytes += amount.bytes;
      }
      EXPECT_EQ(sum.tensors, weights.total.tensors);
      EXPECT_EQ(sum.bytes, weights.total.bytes);
    }
  }
  const WeightSummary official = plan_of("flash", "", true).weights;
  EXPECT_EQ(official.total.bytes, 159609485896);
  EXPECT_EQ(official.total.tensors, 69187);
  EXPECT_EQ(official.parts.at("mtp").tensors, 1575);
  EXPECT_EQ(official.parts.count("other"), 0u);
  // 43 layers of 256 experts of 3 x 2048 x 4096.
  EXPECT_EQ(official.parts.at("experts").values, int64_t{43} * 256 * 3 * 2048 * 4096);
  EXPECT_DOUBLE_EQ(official.parts.at("experts").bits_per_value(), 4.25);
  const WeightSummary k3 = plan_of("flash", "k3", false).weights;
  EXPECT_EQ(k3.parts.count("mtp"), 0u);
  EXPECT_NEAR(k3.formats.at("k3").bits_per_value(), 3.25, 0.001);
}

TEST(Plan, KvRates) {
  const auto rate = [](const char* release) {
    return kv_rate(released_config(release), Numerics::kOfficial);
  };
  EXPECT_DOUBLE_EQ(rate("flash").total(), 3514.25);
  EXPECT_DOUBLE_EQ(rate("pro").total(), 5031.4375);
  // With the FP8 indexer rows of other engines.
  constexpr double kFp8Key = 128 + 4;  // codes and one f32 scale
  const auto with_fp8 = [&](const char* release, int csa_layers) {
    const KvRate r = rate(release);
    return r.total() - r.index_keys() + csa_layers * kFp8Key / 4;
  };
  EXPECT_DOUBLE_EQ(with_fp8("flash", 21), 3850.25);
  EXPECT_DOUBLE_EQ(with_fp8("pro", 30), 5511.4375);
  // Plain f32: engines.md's row for a cache without packing.
  EXPECT_DOUBLE_EQ(kv_rate(released_config("flash"), Numerics::kExact).total(), 13760);
}

TEST(Plan, FixedBytesOfASequence) {
  const ModelConfig flash = released_config("flash"), pro = released_config("pro");
  EXPECT_EQ(sequence_bytes(flash, Numerics::kOfficial).states, 12206080);
  EXPECT_EQ(sequence_bytes(pro, Numerics::kOfficial).states, 18710528);
  // Four pages of 64 tokens a layer hold 128 tokens wherever they begin.
  EXPECT_EQ(sequence_bytes(flash, Numerics::kOfficial).window, int64_t{43} * 4 * 37440);
  EXPECT_NEAR(static_cast<double>(checkpoint_bytes(flash, Numerics::kOfficial)), 3.6e6, 0.05e6);
}

// The plan is the sum that plan.h states, and ModelCache allocates it.
TEST(Plan, CacheIsWhatTheEngineAllocates) {
  const ModelConfig c = released_config("flash");
  for (const int64_t context : {1000, 4096, 131072}) {
    for (const int sequences : {1, 7}) {
      const CacheLimits limits{context, sequences, 512};
      const int64_t window_page = 37440, csa_page = 37440 + 64 * 68, hca_page = 1728;
      const int64_t want = sequences * (sequence_bytes(c, Numerics::kOfficial).total() +
                                        21 * csa_page * ceil_div(context / 4, 64) +
                                        20 * hca_page * ceil_div(context / 128, 2)) +
                           43 * window_page * 512 / 64;
      EXPECT_EQ(plan_cache(c, Numerics::kOfficial, limits).plan.bytes(), want);
    }
  }
  // Reserved only, so the size does not matter.
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    const CacheLimits limits{3000, 2, 64};
    const ModelCache cache(c, numerics, limits, host_memory());
    int64_t bytes = 0;
    for (const LayerCache& layer : cache.layers()) {
      for (const TensorView& view : {layer.window.pages, layer.entries.pages, layer.keys.pages,
                                     layer.state.slots, layer.index_state.slots})
        bytes += view.empty() ? 0 : view.bytes();
    }
    EXPECT_EQ(bytes, plan_cache(c, numerics, limits).plan.bytes());
  }
}

struct Verdict {
  const char *release, *experts;
  bool mtp;
  const char* machine;
  double reserve;  // GiB a GPU
  bool fits;
  double left;  // GiB for the cache, about; 0: not stated
};

TEST(Plan, Verdicts) {
  const Verdict verdicts[] = {{"flash", "k2", false, "1xh100", 6, false, 0},
                              {"flash", "k2", false, "1xh200", 6, true, 52},
                              {"flash", "k3", false, "1xh200", 6, true, 20},
                              {"flash", "", false, "1xh200", 6, false, 0},
                              {"flash", "k4", false, "1xh200", 6, false, 0},
                              {"flash", "k3", false, "2xh100", 6, true, 14.9},
                              {"flash", "", false, "2xh100", 6, false, 0},
                              {"flash", "", false, "2xh100", 4, true, 0.7},
                              {"flash", "", false, "2xh200", 6, true, 59.7},
                              {"flash", "k3", false, "4xh200", 6, true, 104},
                              {"pro", "k2", false, "4xh200", 6, true, 22.5},
                              {"pro", "k2", false, "8xh100", 6, true, 15.1},
                              {"pro", "k3", false, "8xh100", 6, false, 0},
                              {"pro", "k3", false, "8xh200", 6, true, 53.6},
                              {"pro", "", false, "8xh200", 6, true, 31.1},
                              {"pro", "", false, "8xh100", 6, false, 0}};
  for (const Verdict& v : verdicts) {
    const MemoryPlan plan = plan_of(v.release, v.experts, v.mtp, {.context = 8192});
    Machine machine = parse_machine(v.machine);
    machine.reserve_bytes = static_cast<int64_t>(v.reserve * static_cast<double>(kGiB));
    const Fit got = fit(plan, machine);
    SCOPED_TRACE(fmt::format("{} {} {} reserve {}", v.release, v.experts, v.machine, v.reserve));
    EXPECT_EQ(got.fits, v.fits);
    EXPECT_EQ(got.max_context > 0, v.fits);
    EXPECT_EQ(got.max_sequences > 0, v.fits);
    if (v.left == 0) continue;
    // Stated as "about", and a difference of numbers that were rounded to three digits.
    EXPECT_NEAR(gib(got.room_bytes - plan.rank_weights(machine.devices)), v.left,
                1 + 0.03 * v.left);
  }
}

// GiB of docs/spec/several-gpus.md 1.1: a rank has what all ranks have, and its share of the rest.
TEST(Plan, WeightsOfARank) {
  const struct {
    const char *release, *experts;
    double gib[3];  // of 2, 4 and 8 ranks
  } rows[] = {{"flash", "k3", {57.1, 29.2, 15.2}},
              {"flash", "", {73.3, 37.2, 19.2}},
              {"pro", "k2", {218, 110.5, 56.9}},
              {"pro", "", {398, 200.6, 101.9}}};
  for (const auto& row : rows) {
    const MemoryPlan plan = plan_of(row.release, row.experts, false);
    EXPECT_EQ(plan.rank_weights(1), plan.weights.total.bytes);
    int devices = 1;
    for (const double want : row.gib)
      EXPECT_NEAR(gib(plan.rank_weights(devices *= 2)), want, 0.1 + 0.002 * want)
          << row.release << " " << row.experts << " " << devices;
    EXPECT_GT(plan.rank_weights(7), plan.rank_weights(8)) << "eight groups of heads";
  }
}

// Every rank has the whole cache: four GPUs hold more sequences than one because weights are
// shared.
TEST(Plan, TheCacheIsOnEveryRank) {
  const MemoryPlan plan = plan_of("flash", "k3", false);
  const Fit one = fit(plan, parse_machine("1xh200")), four = fit(plan, parse_machine("4xh200"));
  const int64_t sequence =
      plan_cache(plan.config, Numerics::kOfficial, {131072, 101, 512}).plan.bytes() -
      plan_cache(plan.config, Numerics::kOfficial, {131072, 100, 512}).plan.bytes();
  const int64_t freed = plan.weights.total.bytes - plan.rank_weights(4);
  EXPECT_NEAR(static_cast<double>(four.max_sequences - one.max_sequences),
              static_cast<double>(freed) / static_cast<double>(sequence), 2);
  EXPECT_EQ(four.room_bytes, one.room_bytes);
}

// The largest context and number of sequences are exactly that.
TEST(Plan, LargestRequestsFitAndTheNextDoNot) {
  for (const char* name : {"1xh200", "2xh100"}) {
    for (const char* experts : {"k3", "k2"}) {
      Machine machine = parse_machine(name);
      machine.reserve_bytes = machine.device_bytes;  // leave hardly more than the weights
      PlanRequest request{.context = 65536};
      const MemoryPlan base = plan_of("flash", experts, false, request);
      machine.reserve_bytes -= base.rank_weights(machine.devices) + kGiB;
      const Fit limit = fit(base, machine);
      ASSERT_GT(limit.max_context, 65536);
      ASSERT_LT(limit.max_context, base.config.max_positions);
      EXPECT_FALSE(limit.all_positions);
      for (const int64_t more : {0, 1024}) {  // pages come in 256 tokens
        const PlanRequest longer{.context = limit.max_context + more};
        EXPECT_EQ(fit(plan_of("flash", experts, false, longer), machine).fits, more == 0);
        const PlanRequest wider{.context = 65536,
                                .sequences = static_cast<int>(limit.max_sequences + (more > 0))};
        EXPECT_EQ(fit(plan_of("flash", experts, false, wider), machine).fits, more == 0);
      }
    }
  }
}

TEST(Plan, OneH200HoldsFiveMillionTokensBesideK3) {
  const MemoryPlan plan = plan_of("flash", "k3", false, {.context = 1 << 20});
  const Fit got = fit(plan, parse_machine("1xh200"));
  EXPECT_EQ(got.max_sequences, 5);
  EXPECT_TRUE(got.all_positions);
}

TEST(Plan, ABigStepEatsIntoTheRoom) {
  PlanRequest request{.context = 65536, .batch_tokens = 512};
  const int64_t room =
      fit(plan_of("pro", "k2", false, request), parse_machine("4xh200")).room_bytes;
  EXPECT_EQ(room, (139 - 6) * kGiB);
  request.batch_tokens = 65536;
  EXPECT_LT(fit(plan_of("pro", "k2", false, request), parse_machine("4xh200")).room_bytes, room);
}

TEST(Plan, BadRequests) {
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kBadInput,
                                        [] { plan_of("flash", "", false, {.context = 1 << 21}); }),
                         "2097152 tokens exceeds the model's 1048576 positions"));
  ModelConfig odd = released_config("flash");
  odd.head_dim = 500;
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kUnsupported, [&] { plan_memory(odd, {}, {.context = 10}); }),
      "--numerics exact"));
  for (const char* name :
       {"", "h100", "0xh100", "65xh100", "2xb200", "2h100", "2xh100 ", "-1xh100"})
    EXPECT_TRUE(
        test::says(test::error_of(ErrorCode::kBadInput, [&] { parse_machine(name); }), "want cpu"));
  EXPECT_EQ(parse_machine("5xh200").devices, 5);
  EXPECT_GT(parse_machine("cpu").device_bytes, kGiB / 4);
}

}  // namespace
}  // namespace dsv4
