// What rank 0 sends arrives as it was, and damaged messages end with an error.

#include "dsv4/engine/rank_messages.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "dsv4/engine/rank_mirror.h"

namespace dsv4 {
namespace {

std::vector<int32_t> numbers(Rng& rng, int64_t most) {
  std::vector<int32_t> list(static_cast<size_t>(rng.below(most + 1)));
  for (int32_t& number : list) number = static_cast<int32_t>(rng.below(1 << 30));
  return list;
}

struct Plan {
  std::vector<std::vector<int32_t>> tables;
  ForwardBatch batch;
};

Plan random_plan(Rng& rng) {
  Plan plan;
  plan.batch.ids = numbers(rng, 9);
  plan.batch.logits_rows = numbers(rng, 3);
  plan.batch.before = numbers(rng, 2);
  const int64_t runs = rng.below(4), groups = rng.below(3);
  plan.tables.reserve(static_cast<size_t>(runs * groups));
  for (int64_t i = 0; i < runs; ++i) {
    SequenceRun run{.first = rng.below(9), .count = rng.below(9), .position = rng.below(1 << 20)};
    run.slot = static_cast<int32_t>(rng.below(7));
    run.block_row = static_cast<int32_t>(rng.below(7));
    for (int64_t g = 0; g < groups; ++g)
      run.pages.emplace_back(plan.tables.emplace_back(numbers(rng, 5)));
    plan.batch.runs.push_back(run);
  }
  return plan;
}

TEST(RankMessages, APlanArrives) {
  Rng rng(1);
  for (int64_t step = 0; step < 200; ++step) {
    const Plan sent = random_plan(rng);
    MessageWriter message;
    put_plan(message, StepPlan(step, sent.batch), {.eager = step % 2 == 0, .logits_rows = step});
    MessageReader reader(message.bytes());
    StepForm form;
    const auto got = get_plan(reader, form);
    EXPECT_EQ(form.eager, step % 2 == 0);
    EXPECT_EQ(form.logits_rows, step);
    const ForwardBatch& batch = got->batch();
    EXPECT_EQ(got->step(), step);
    EXPECT_EQ(batch.ids, sent.batch.ids);
    EXPECT_EQ(batch.logits_rows, sent.batch.logits_rows);
    EXPECT_EQ(batch.before, sent.batch.before);
    ASSERT_EQ(batch.runs.size(), sent.batch.runs.size());
    for (size_t i = 0; i < batch.runs.size(); ++i) {
      const SequenceRun &run = batch.runs[i], &want = sent.batch.runs[i];
      EXPECT_EQ(run.first, want.first);
      EXPECT_EQ(run.count, want.count);
      EXPECT_EQ(run.position, want.position);
      EXPECT_EQ(run.slot, want.slot);
      EXPECT_EQ(run.block_row, want.block_row);
      ASSERT_EQ(run.pages.size(), want.pages.size());
      for (size_t g = 0; g < run.pages.size(); ++g)
        EXPECT_TRUE(std::ranges::equal(run.pages[g], want.pages[g]));
    }
  }
}

TEST(RankMessages, DamagedPlansAreRefusedOrRead) {
  Rng rng(2);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    MessageWriter message;
    put_plan(message, StepPlan(1, random_plan(rng).batch), {});
    Bytes bytes = message.bytes();
    if (rng.below(2) == 0) bytes.resize(static_cast<size_t>(rng.below(std::ssize(bytes))));
    for (int64_t n = rng.below(4); n > 0 && !bytes.empty(); --n)
      bytes[static_cast<size_t>(rng.below(std::ssize(bytes)))] = std::byte(rng.below(256));
    try {
      MessageReader reader(bytes);
      StepForm form;
      get_plan(reader, form);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10000);
}

TEST(RankMessages, AContextArrives) {
  const std::string op = "moe", impl = "parts";
  const std::vector<ImplChoice> choices = {{op, impl}};
  MessageWriter message;
  put_context(message,
              {.numerics = Numerics::kExact, .need_batch_invariant = true, .choices = choices});
  MessageReader reader(message.bytes());
  const auto got = get_context(reader);
  reader.end();
  EXPECT_EQ(got->context.numerics, Numerics::kExact);
  EXPECT_TRUE(got->context.need_batch_invariant);
  ASSERT_EQ(got->context.choices.size(), 1u);
  EXPECT_EQ(got->context.choices[0].op, "moe");
  EXPECT_EQ(got->context.choices[0].impl, "parts");
}

TEST(RankMessages, BlocksLieWhereRank0NamesThem) {
  BlocksOfRank blocks(host_memory());
  const std::byte* const there = unmapped_address(4096);
  blocks.allocate(there, 100);
  std::byte* const here = blocks.at(there, 100);
  EXPECT_EQ(blocks.at(there + 30, 70), here + 30);
  EXPECT_THROW(blocks.at(there + 30, 71), Error);
  EXPECT_THROW(blocks.at(there - 1, 1), Error);
  EXPECT_THROW(blocks.at(there, -1), Error);
  blocks.release(there);
  EXPECT_THROW(blocks.at(there, 1), Error);
  blocks.release(there);
}

}  // namespace
}  // namespace dsv4
