// Prefill at once, in chunks of any size and one token at a time, alone and in a batch with other
// sequences, gives the same bits (docs/adr/0011). Both numerics modes, all layer
// kinds.

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "tests/harness/op_check.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::random_ids;

struct Case {
  const char* folder;
  Numerics numerics;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string text = std::string(info.param.folder) + "_" + name(info.param.numerics);
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

class Chunking : public testing::TestWithParam<Case> {
 protected:
  Chunking() : model_(Model::load(GetParam().folder)) {}
  Model model_;
};

#ifdef DSV4_SANITIZED
constexpr int64_t kChunks[] = {2, 64, 129};  // a quarter of the steps, which take ten times as long
#else
constexpr int64_t kChunks[] = {1, 2, 3, 5, 64, 127, 128, 129, 299};
#endif

TEST_P(Chunking, AnyChunkGivesTheSameBits) {
  const std::vector<int32_t> ids = random_ids(300, model_.config().vocab_size, 1);
  const Buffer whole = test::all_logits(model_, GetParam().numerics, ids, 300);
  for (const int64_t chunk : kChunks) {
    const Buffer parts = test::all_logits(model_, GetParam().numerics, ids, chunk);
    EXPECT_TRUE(test::same_bits(whole, parts)) << "chunk " << chunk;
  }
}

TEST_P(Chunking, DoesNotDependOnThreads) {
  const std::vector<int32_t> ids = random_ids(200, model_.config().vocab_size, 6);
  const auto with = [&](int threads) {
    const test::ThreadCount scope(threads);
    return test::all_logits(model_, GetParam().numerics, ids, 150);
  };
  EXPECT_TRUE(test::same_bits(with(1), with(3)));
}

// Three sequences advance together by random amounts, mixing prefill and decode; one starts late.
TEST_P(Chunking, DoesNotDependOnTheBatch) {
  const int64_t vocab = model_.config().vocab_size;
  const std::vector<std::vector<int32_t>> ids = {
      random_ids(170, vocab, 2), random_ids(290, vocab, 3), random_ids(33, vocab, 4)};
  const Context context{.numerics = GetParam().numerics};
  Executor executor(model_, context,
                    {.max_tokens = 300, .max_sequences = 3, .max_batch_tokens = 300});
  std::vector<Buffer> got;
  std::vector<SeqId> seqs;
  for (const auto& sequence : ids) {
    got.emplace_back(DType::kF32,
                     std::initializer_list<int64_t>{static_cast<int64_t>(sequence.size()), vocab});
    seqs.push_back(executor.cache().open());
  }
  Rng rng(5);
  std::vector<size_t> done(ids.size(), 0);
  for (int step = 0; done[0] < ids[0].size() || done[1] < ids[1].size() || done[2] < ids[2].size();
       ++step) {
    std::vector<Work> work;
    std::vector<size_t> who;
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t left = ids[i].size() - done[i];
      if (left == 0 || (i == 2 && step < 4)) continue;
      const auto count =
          std::min<size_t>(left, rng.below(2) == 0 ? 1 : static_cast<size_t>(1 + rng.below(60)));
      work.push_back(
          {seqs[i], std::span<const int32_t>(ids[i]).subspan(done[i], count), Work::Logits::kAll});
      who.push_back(i);
    }
    const ConstTensorView logits = executor.run(work);
    executor.cache().check_invariants();
    int64_t row = 0;
    for (size_t w = 0; w < work.size(); ++w) {
      const auto count = static_cast<int64_t>(work[w].ids.size());
      std::copy_n(logits.row<float>(row), count * vocab,
                  got[who[w]].view().row<float>(static_cast<int64_t>(done[who[w]])));
      done[who[w]] += static_cast<size_t>(count);
      row += count;
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(test::same_bits(got[i], test::all_logits(model_, GetParam().numerics, ids[i], 512)))
        << "sequence " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Chunking,
                         testing::Values(Case{"tests/golden/hf/mixed", Numerics::kExact},
                                         Case{"tests/golden/hf/hd128", Numerics::kExact},
                                         Case{"tests/golden/hf/hc2", Numerics::kExact},
                                         Case{"models/demo", Numerics::kExact},
                                         Case{"models/demo", Numerics::kOfficial}),
                         case_name);

}  // namespace
}  // namespace dsv4
