// Which source of drafts a request gets as its text changes: the host's own ones, or a drafter's.
// Texts are known beforehand, so there is no model.

#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/base/rng.h"
#include "dsv4/engine/request_state.h"
#include "dsv4/engine/speculation.h"

namespace dsv4 {
namespace {

constexpr int32_t kVocab = 8, kWrong = kVocab - 1;

// Guesses the text, right with this chance.
class TextDrafter final : public Drafter {
 public:
  explicit TextDrafter(const std::vector<int32_t>& text) : text_(text) {}
  void propose(std::span<DraftWant> wants) override {
    for (DraftWant& want : wants)
      for (int64_t i = 0; i < want.most; ++i)
        want.drafts.push_back(rng_.uniform() < right
                                  ? text_.at(want.tokens.size() + static_cast<size_t>(i))
                                  : kWrong);
  }
  double right = 1;

 private:
  const std::vector<int32_t>& text_;
  Rng rng_{5};
};

// A request whose answer is the text after its first tokens.
struct Scene {
  std::vector<int32_t> text;
  std::shared_ptr<TextDrafter> drafter = std::make_shared<TextDrafter>(text);
  Speculation speculation{{.on = true, .draft_tokens = 3, .drafter = drafter, .vocab = kVocab}};
  RequestState request;

  // Random ones of so many different tokens, which lookup finds and rarely knows how they go on.
  void add_free(int64_t count, int64_t different) {
    Rng rng(9);
    for (int64_t i = 0; i < count; ++i) text.push_back(static_cast<int32_t>(rng.below(different)));
  }
  void add_repeated(int64_t count) {
    for (int64_t i = 0; i < count; ++i) text.push_back(static_cast<int32_t>(3 + i % 4));
  }
  void begin(int64_t prompt) {
    request.tokens.assign(text.begin(), text.begin() + prompt);
    request.params.max_new_tokens = std::ssize(text);
  }
  // Rounds until so many tokens stand there; what was drafted in them.
  DraftCounts run(size_t tokens) {
    DraftCounts sum;
    while (request.tokens.size() < tokens) {
      Speculation::Proposal one{&request, speculation.want(request)};
      speculation.choose({&one, 1});
      EXPECT_LE(one.most, 3);
      Speculation::limit(request, one.most);
      speculation.propose({&one, 1});
      const std::vector<Round::Draft> drafts = request.round.drafts;
      Speculation::Given given{.first = text[request.tokens.size()]};
      for (size_t i = 0; i <= drafts.size(); ++i) {
        given.last = text[request.tokens.size()];
        request.tokens.push_back(given.last);
        ++request.generated, ++given.tokens;
        if (i < drafts.size() && drafts[i].token != given.last) break;
      }
      sum += speculation.count(request, given);
    }
    return sum;
  }
};

int64_t drafted(const DraftCounts& counts, DraftSource source) {
  return counts.drafted[static_cast<size_t>(source)];
}

// Own drafts that are found and rarely hold give way to the drafter. They are judged all the same,
// so they come back where the text begins to repeat, though the drafter still holds often.
TEST(SpeculationChoice, FollowsTheText) {
  Scene scene;
  scene.add_free(600, 3), scene.add_repeated(600);
  scene.begin(100);
  scene.run(200);  // what holds is learned
  const DraftCounts free = scene.run(590);
  EXPECT_GT(drafted(free, DraftSource::kDrafter), 250);
  EXPECT_LT(drafted(free, DraftSource::kLookup), 20);
  scene.drafter->right = 0.75;
  scene.run(800);
  const DraftCounts repeated = scene.run(1190);
  EXPECT_GT(drafted(repeated, DraftSource::kLookup), 250);
  EXPECT_LT(drafted(repeated, DraftSource::kDrafter), 40);
}

// What a drafter failed at is forgotten while others draft, so it is tried where they find little
// more.
TEST(SpeculationChoice, GivesTheDrafterAnotherChance) {
  Scene scene;
  scene.add_free(600, 6), scene.add_repeated(3000), scene.add_free(400, 2);
  scene.begin(100);
  scene.drafter->right = 0;
  EXPECT_GT(drafted(scene.run(590), DraftSource::kDrafter), 60) << "it fails";
  EXPECT_LT(drafted(scene.run(3590), DraftSource::kDrafter), 60) << "others are better";
  scene.drafter->right = 1;
  EXPECT_GT(drafted(scene.run(3990), DraftSource::kDrafter), 150);
}

}  // namespace
}  // namespace dsv4
