// Recall of facts stated up to 3900 tokens earlier, under official numerics with the FP8/FP4
// caches: as many correct answers as PyTorch for the same prompts (tests/golden/demo/recall.json).

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/engine/engine.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int32_t>;

class Answer : public TokenSink {
 public:
  void on_token(RequestId, const Sampled& token) override { ids.push_back(token.id); }
  void on_finish(RequestId, Finish) override {}
  Ids ids;
};

Ids greedy(const Model& model, const Ids& prompt, int64_t n) {
  Engine engine(model, {.max_tokens = static_cast<int64_t>(prompt.size()) + n});
  Answer answer;
  engine.submit(prompt, {.sampling = {.temperature = 0}, .max_new_tokens = n}, answer);
  while (engine.step()) {
  }
  return answer.ids;
}

// Prompts of each distance: a hundred prompts of 3000 tokens take three minutes, and find no more.
constexpr int kMostPrompts = 30;

class Recall : public testing::TestWithParam<int> {};

TEST_P(Recall, MatchesPyTorch) {
  const Model model = Model::load("models/demo");
  const auto golden =
      nlohmann::json::parse(read_text_file(test::kGoldenFolder + "demo/recall.json"));
  int prompts = 0, right = 0, torch_right = 0, same = 0;
  for (const auto& item : golden) {
    if (item.at("distance") != GetParam() || prompts == kMostPrompts) continue;
    const Ids answer = item.at("answer").get<Ids>(), torch = item.at("torch").get<Ids>();
    const Ids got =
        greedy(model, item.at("prompt").get<Ids>(), static_cast<int64_t>(answer.size()));
    ++prompts;
    right += got == answer ? 1 : 0;
    torch_right += torch == answer ? 1 : 0;
    same += got == torch ? 1 : 0;
  }
  fmt::print("distance {}: {} of {} right, PyTorch {}, the same answer {}\n", GetParam(), right,
             prompts, torch_right, same);
  ASSERT_GE(prompts, 20);
  EXPECT_GE(right, torch_right);
}

INSTANTIATE_TEST_SUITE_P(Distance, Recall, testing::Values(64, 256, 512, 1000, 2000, 3000, 3900));

}  // namespace
}  // namespace dsv4
