// Steps of sequences that advance together, a random number of them a step: captured steps of many
// sizes, and now and then one with a chunk. Two objects make equal steps.

#pragma once

#include <chrono>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/cache/prefix_key.h"
#include "dsv4/engine/executor.h"
#include "tests/model/golden_files.h"

namespace dsv4::test {

class RandomBatches {
 public:
  RandomBatches(const Model& model, const Context& context)
      : vocab_(model.config().vocab_size),
        executor_(model, context,
                  {.max_tokens = kTokens, .max_sequences = kSequences, .max_batch_tokens = 128}) {
    for (int i = 0; i < kSequences; ++i) seqs_.push_back(executor_.cache().open());
  }

  Executor& executor() { return executor_; }

  // Logits of the last token of each sequence; the next call overwrites them.
  ConstTensorView next_logits() {
    std::vector<Work> work;
    std::vector<std::vector<int32_t>> ids;
    const auto wanted = 1 + rng_.below(kSequences);
    const bool chunk = rng_.below(8) == 0;
    ids.reserve(kSequences);
    for (int i = 0; i < wanted; ++i) {
      SeqId& seq = seqs_[static_cast<size_t>(i)];
      const int64_t count = chunk ? 1 + rng_.below(20) : 1;
      if (executor_.cache().length(seq) + count > kTokens) {
        executor_.cache().close(seq);
        seq = executor_.cache().open();
      }
      ids.push_back(random_ids(count, vocab_, static_cast<uint64_t>(step_ * kSequences + i)));
      work.push_back({seq, ids.back(), Work::Logits::kLast});
    }
    ++step_;
    return executor_.run(work);
  }

 private:
  static constexpr int kSequences = 6;
  static constexpr int64_t kTokens = 400;
  int64_t vocab_, step_ = 0;
  Executor executor_;
  std::vector<SeqId> seqs_;
  Rng rng_{5};
};

// What many steps leave behind, at every hundredth of them.
struct Digests {
  std::vector<Digest> logits;               // of the hundred steps
  std::vector<std::vector<Digest>> caches;  // [][world]
};

// Hundreds of steps, until there are so many or the time is over. caches(): bytes of each rank
template <class Caches>
Digests run_hundreds(RandomBatches& batches, size_t most, std::chrono::seconds time,
                     const Caches& caches) {
  const auto end = std::chrono::steady_clock::now() + time;
  Digests digests;
  while (digests.logits.size() < most && std::chrono::steady_clock::now() < end) {
    std::vector<std::byte> logits;
    for (int step = 0; step < 100; ++step) {
      const ConstTensorView view = batches.next_logits();
      logits.insert(logits.end(), view.data, view.data + view.bytes());
    }
    digests.logits.push_back(digest_of(logits));
    digests.caches.emplace_back();
    for (const auto& cache : caches()) digests.caches.back().push_back(digest_of(cache));
  }
  return digests;
}

}  // namespace dsv4::test
