// The lists that kernels of experts.h walk, on the emulator, alone.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/ops/gemm/sm90/experts/list_pairs.cuh"
#include "tests/emulator/launch.h"
#include "tests/harness/arena.h"

namespace dsv4 {
namespace {

// Ids of no expert, of broken weights: every pair still has its own place in the lists, and nothing
// is written outside of them.
TEST(ExpertsListEmulated, IdsOfNoExpert) {
  constexpr int64_t kTokens = 200, kSlots = 6, kAll = kTokens * kSlots, kEach = 256;
  test::Arena arena;
  const TensorView ids = arena.input(DType::kI32, {kTokens, kSlots});
  const TensorView weights = arena.input(DType::kF32, {kTokens, kSlots});
  Rng rng(8);
  constexpr int32_t kNone[] = {256, -1, INT32_MAX, INT32_MIN, 100'000, 383};
  std::vector<int32_t> expert_of;
  for (int64_t i = 0; i < kAll; ++i) {
    const bool exists = rng.below(4) != 0;
    const auto id = exists ? static_cast<int32_t>(rng.below(kEach)) : kNone[rng.below(6)];
    ids.as<int32_t>()[i] = id, weights.as<float>()[i] = 0.5f + static_cast<float>(i);
    expert_of.push_back(exists ? id : -1);
  }
  const TensorView weight = arena.output(DType::kF32, {kAll});
  const TensorView pair_of = arena.output(DType::kI32, {kAll});
  constexpr int kCtas = 3;
  const int64_t entries = gemm::experts::max_entries(kAll, kEach, 3);
  const auto words = [&](int64_t count, size_t bytes) {
    return arena.output(DType::kI32, {count * static_cast<int64_t>(bytes / sizeof(int32_t))});
  };
  const TensorView entry = words(entries, sizeof(gemm::experts::Entry));
  const TensorView starts[] = {words(kCtas, sizeof(gemm::experts::Start)),
                               words(kCtas, sizeof(gemm::experts::Start))};
  const gemm::experts::Choices choices{.experts = ids.as<int32_t>(),
                                       .weights = weights.as<float>(),
                                       .expert_stride = kSlots,
                                       .weight_stride = kSlots,
                                       .pairs = kAll,
                                       .slots = kSlots,
                                       .count = kEach,
                                       .entry_bits = 3};
  const gemm::experts::PairLists lists{
      .weight = weight.as<float>(),
      .pair_of = pair_of.as<int32_t>(),
      .entries = reinterpret_cast<gemm::experts::Entry*>(entry.data),
      .starts = {reinterpret_cast<gemm::experts::Start*>(starts[0].data),
                 reinterpret_cast<gemm::experts::Start*>(starts[1].data)},
      .ctas = kCtas,
      .entry_stages = {2, 1}};
  arena.freeze();
  arena.prepare();
  ASSERT_NO_THROW(
      emulator::launch_stream({{{.block = gemm::experts::kListThreads, .pdl = true},
                                [&] { gemm::experts::list_pairs_kernel<>(choices, lists); }}},
                              1));
  arena.verify();
  std::vector<int> taken(kAll);
  for (int64_t i = 0; i < kAll; ++i) {
    const int32_t pair = lists.pair_of[i];
    ASSERT_TRUE(pair >= 0 && pair < kAll && ++taken[static_cast<size_t>(pair)] == 1) << i;
    const bool exists = expert_of[static_cast<size_t>(i)] >= 0;
    ASSERT_EQ(lists.weight[pair], exists ? weights.as<float>()[i] : 0.f) << i;
  }
}

}  // namespace
}  // namespace dsv4
