// What grammars take together, while they grow and after the answers that used them.

#include "dsv4/server/grammars.h"

#include <gtest/gtest.h>

#include "dsv4/grammar/schema_grammar.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

constexpr size_t kMiB = 1 << 20;

// After n letters the states are the sets of places of an `a` among the latest 14: 2^14 of them.
Automaton growing() {
  return regex_format_grammar("[ab]*a[ab]{14}", "test");
}

void grow(TokenMasks& masks, Rng& rng, int letters) {
  TokenMasks::State state = masks.start();
  for (int i = 0; i < letters; ++i)
    state = masks.advance_bytes(state, rng.below(2) == 0 ? "a" : "b");
}

class GrammarsTest : public testing::Test {
 protected:
  std::shared_ptr<TokenMasks> get(Grammars& grammars, const std::string& key) const {
    const EngineLimits limits{.vocab_size = tokenizer_->vocab_size(), .context = 1000, .eos = {1}};
    return grammars.get(limits, key, growing);
  }

  const std::shared_ptr<const Tokenizer> tokenizer_ =
      std::make_shared<const Tokenizer>(Tokenizer::load("models/demo/tokenizer.json"));
  const MarkerIds markers_{*tokenizer_};
  Rng rng_{7};
};

TEST_F(GrammarsTest, IdleOnesLeaveWhenTheyHaveGrown) {
  Grammars grammars(tokenizer_, markers_, {.idle_bytes = 4 * kMiB});
  auto used = get(grammars, "used");
  get(grammars, "small");
  const size_t at_first = grammars.size().bytes;
  EXPECT_LT(at_first, kMiB);
  grow(*used, rng_, 6000);
  EXPECT_GT(grammars.size().bytes, 4 * kMiB);
  get(grammars, "small");
  EXPECT_EQ(get(grammars, "used"), used) << "its answer is not at its end";
  used = nullptr;
  grammars.trim();
  EXPECT_LT(grammars.size().bytes, kMiB);
}

TEST_F(GrammarsTest, ThoseThatAnswersUseHaveALimit) {
  Grammars grammars(tokenizer_, markers_, {.kept = 1, .idle_bytes = kMiB, .most_bytes = 8 * kMiB});
  std::vector<std::shared_ptr<TokenMasks>> used;
  int refused = 0;
  for (int i = 0; i < 4; ++i) {
    try {
      used.push_back(get(grammars, std::to_string(i)));
      grow(*used.back(), rng_, 6000);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResource);
      ++refused;
    }
    EXPECT_LE(grammars.size().bytes, 8 * kMiB) << "dropped, but used";
  }
  EXPECT_GE(refused, 2);
  // A mask is computed even where there is no room to keep it, and the limit ends with the answers.
  used.clear();
  grammars.trim();
  EXPECT_LT(grammars.size().bytes, kMiB);
  EXPECT_NO_THROW(grow(*get(grammars, "again"), rng_, 500));
}

}  // namespace
}  // namespace dsv4
