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

// Drafts of two passes for two sequences and one.
struct Drafts {
  Plan plans[2];
  std::vector<LayerCache> caches{1};
  std::vector<SamplingParams> params{2};
  std::vector<uint64_t> steps{7, 8};
  std::vector<TokenTerm> terms{{.id = 4, .count = 1, .seen = 1, .bias = 2}};
  std::vector<int32_t> term_begin{0, 0, 1};
  std::vector<uint32_t> mask{1, 2};
  DraftChain chain{.kind = DrafterKind::kMtp, .sequences = {2, 1}};

  explicit Drafts(Rng& rng, const std::byte* address) {
    const auto tensor = [&](int64_t offset) {
      return TensorView(TensorMeta::contiguous(DType::kF32, {4}),
                        const_cast<std::byte*>(address) + offset);
    };
    for (int64_t pass = 0; pass < 2; ++pass) {
      Plan& plan = plans[pass];
      while (std::ssize(plan.batch.runs) < 2) plan = random_plan(rng);
      plan.batch.runs.resize(static_cast<size_t>(2 - pass));
      chain.passes.push_back(plan.batch);
    }
    caches[0].window.pages = tensor(0);
    chain.caches = caches;
    chain.pending = tensor(16);
    chain.buffers.chain[1] = tensor(32);
    chain.buffers.logits = tensor(48);
    params[1].seed = 9;
    chain.sampling = {
        .params = params, .steps = steps, .terms = terms, .term_begin = term_begin, .mask = mask};
  }
};

TEST(RankMessages, DraftsArrive) {
  Rng rng(3);
  const std::byte *const there = unmapped_address(1 << 20), *const here = unmapped_address(1 << 30);
  const Drafts sent(rng, there);
  MessageWriter message;
  put_draft(message, sent.chain, true);
  MessageReader reader(message.bytes());
  bool eager = false;
  const auto at = [&](const std::byte* address, int64_t bytes) {
    EXPECT_EQ(bytes, 16);
    return const_cast<std::byte*>(here) + (address - there);
  };
  const auto plan = get_draft(reader, at, eager);
  const DraftChain& got = plan->chain();
  EXPECT_TRUE(eager);
  EXPECT_EQ(got.kind, DrafterKind::kMtp);
  EXPECT_EQ(got.sequences, sent.chain.sequences);
  ASSERT_EQ(got.passes.size(), 2u);
  for (size_t pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(got.passes[pass].ids, sent.chain.passes[pass].ids);
    EXPECT_EQ(got.passes[pass].before, sent.chain.passes[pass].before);
    ASSERT_EQ(got.passes[pass].runs.size(), 2 - pass);
    for (size_t g = 0; g < sent.chain.passes[pass].runs[0].pages.size(); ++g)
      EXPECT_TRUE(std::ranges::equal(got.passes[pass].runs[0].pages[g],
                                     sent.chain.passes[pass].runs[0].pages[g]));
  }
  ASSERT_EQ(got.caches.size(), 1u);
  EXPECT_EQ(got.caches[0].window.pages.data, here);
  EXPECT_EQ(got.pending.data, here + 16);
  EXPECT_TRUE(got.buffers.chain[0].empty());
  EXPECT_EQ(got.buffers.chain[1].data, here + 32);
  EXPECT_EQ(got.buffers.logits.data, here + 48);
  EXPECT_EQ(got.sampling.params[1].seed, 9u);
  EXPECT_TRUE(std::ranges::equal(got.sampling.steps, sent.steps));
  EXPECT_EQ(got.sampling.terms[0].id, 4);
  EXPECT_TRUE(std::ranges::equal(got.sampling.term_begin, sent.term_begin));
  EXPECT_TRUE(std::ranges::equal(got.sampling.mask, sent.mask));
}

TEST(RankMessages, DamagedDraftsAreRefusedOrRead) {
  Rng rng(4);
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::byte* const there = unmapped_address(1 << 20);
    const Drafts sent(rng, there);
    MessageWriter message;
    put_draft(message, sent.chain, false);
    Bytes bytes = message.bytes();
    if (rng.below(2) == 0) bytes.resize(static_cast<size_t>(rng.below(std::ssize(bytes))));
    for (int64_t n = rng.below(40); n > 0 && !bytes.empty(); --n)
      bytes[static_cast<size_t>(rng.below(std::ssize(bytes)))] = std::byte(rng.below(256));
    try {
      MessageReader reader(bytes);
      bool eager = false;
      get_draft(
          reader, [&](const std::byte*, int64_t) { return const_cast<std::byte*>(there); }, eager);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2500);
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
