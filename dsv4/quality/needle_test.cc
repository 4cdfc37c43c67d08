#include "dsv4/quality/needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

class Needle : public testing::Test {
 protected:
  NeedlePrompt make(int64_t distance, uint64_t seed) const {
    return make_needle(form, tokenizer, 0, distance, seed);
  }
  const Tokenizer tokenizer = Tokenizer::load("models/demo/tokenizer.json");
  const NeedleTemplate form =
      parse_needle_template(read_text_file("models/demo/needle.json"), "needle.json");
};

// Finds the value's last token in the prompt, which ends before the answer's first token.
TEST_F(Needle, DistanceIsExact) {
  for (const int64_t distance : {20, 64, 257, 1000, 3000}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const NeedlePrompt prompt = make(distance, seed);
      const std::string text = tokenizer.decode(prompt.ids);
      const size_t question = text.rfind("Question: ");
      ASSERT_NE(question, std::string::npos);
      EXPECT_EQ(text.substr(text.size() - 7), "Answer:") << text;
      // In the demo's facts the question ends with the subject, and the statement begins with it.
      const size_t subject = text.find(" is ", question) + 4;
      std::string key = text.substr(subject, text.rfind('?') - subject);
      if (key.rfind("the name of ", 0) == 0) key = key.substr(12);
      const std::string stated = key + " is" + prompt.answer.substr(0, prompt.answer.size() - 2);
      const size_t value_end = text.find(stated);
      ASSERT_NE(value_end, std::string::npos) << stated << "\n" << text;
      const std::string rest = text.substr(value_end + stated.size());
      EXPECT_EQ(static_cast<int64_t>(tokenizer.encode(rest).size()), distance) << text;
      EXPECT_EQ(prompt.ids.front(), 0);
      EXPECT_EQ(prompt.answer_tokens, static_cast<int64_t>(tokenizer.encode(prompt.answer).size()));
    }
  }
}

TEST_F(Needle, PromptDependsOnTheSeed) {
  EXPECT_EQ(make(256, 5).ids, make(256, 5).ids);
  EXPECT_NE(make(256, 5).ids, make(256, 6).ids);
  std::set<std::string> answers;
  for (uint64_t seed = 0; seed < 50; ++seed) answers.insert(make(64, seed).answer);
  EXPECT_GT(answers.size(), 30u);
}

TEST_F(Needle, DistractorsHaveOtherQuestions) {
  const auto stated = [&](int64_t distance, uint64_t seed) {
    const std::string text = tokenizer.decode(make(distance, seed).ids);
    std::vector<std::string> facts;
    for (size_t at = 0; (at = text.find("Remember: ", at)) != std::string::npos; ++at)
      facts.push_back(text.substr(at, text.find(" is ", at) - at));
    return facts;
  };
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<std::string> facts = stated(600, seed);
    EXPECT_GE(facts.size(), 4u) << "the first line may be a fact cut at its start";
    EXPECT_EQ(std::set(facts.begin(), facts.end()).size(), facts.size());
    EXPECT_EQ(stated(64, seed).size(), 1u);
  }
}

TEST_F(Needle, BuiltInTemplate) {
  const NeedlePrompt prompt = make_needle(default_needle_template(), tokenizer, -1, 500, 1);
  const std::string text = tokenizer.decode(prompt.ids);
  EXPECT_NE(text.find("The secret number of "), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 3), " is");
  EXPECT_NE(text.find(prompt.answer + "."), std::string::npos);
}

TEST_F(Needle, RejectsDistanceShorterThanTheQuestion) {
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kBadInput, [&] { make(3, 1); }),
                         "a distance of 3 tokens is shorter than the question itself"));
}

TEST(IsRight, ByHand) {
  EXPECT_TRUE(is_right(" lantern.\nOnce", " lantern.\n"));
  EXPECT_FALSE(is_right(" lantern.", " lantern.\n"));
  EXPECT_FALSE(is_right(" lanterns.\n", " lantern.\n"));
  EXPECT_TRUE(is_right("\n 1234 is", " 1234"));
  EXPECT_TRUE(is_right(" 1234", " 1234"));
  EXPECT_FALSE(is_right(" 12345", " 1234"));
  EXPECT_FALSE(is_right("", " 1234"));
  EXPECT_FALSE(is_right("anything", " "));
}

std::string parse_error(const std::string& json) {
  return test::error_of(ErrorCode::kBadInput, [&] { parse_needle_template(json, "n.json"); });
}

TEST(NeedleTemplate, Errors) {
  const std::string fact =
      R"({"fact": "{key} is {value}.", "question": "{key}?", "answer": "{value}", )"
      R"("keys": ["a"], "values": ["b"]})";
  const auto with = [&](const std::string& facts, const std::string& rest) {
    return fmt::format(R"({{"facts": {}, {}}})", facts, rest);
  };
  const std::string filler = R"("filler": ["x\n"])";
  EXPECT_EQ(parse_needle_template(with("[" + fact + "]", filler), "n.json").distractors, 0);
  EXPECT_EQ(parse_error("{"), "n.json: not a JSON object");
  EXPECT_EQ(parse_error("[]"), "n.json: not a JSON object");
  EXPECT_EQ(parse_error("{" + filler + "}"), "n.json: facts must be a non-empty list");
  EXPECT_EQ(parse_error(with("[3]", filler)), "n.json: every fact must be an object");
  EXPECT_EQ(parse_error(with("[" + fact + "]", R"("filler": [""])")),
            "n.json: filler must be a list of non-empty strings");
  EXPECT_EQ(parse_error(with("[" + fact + "]", filler + R"(, "distractors": -1)")),
            "n.json: distractors must be a number from 0 to 1000");
  EXPECT_EQ(parse_error(with("[" + fact + "]", filler + R"(, "fillers": 1)")),
            "n.json: unknown key; the keys are facts, filler, distractors");
  for (const auto& [from, to, say] :
       {std::array{"{key} is {value}.", "{key} is.", "fact must be a string with {value}"},
        std::array{"\"{key}?\"", "7", "question must be a string"},
        std::array{"[\"b\"]", "\"b\"", "values must be a list of non-empty strings"}}) {
    std::string changed = fact;
    changed.replace(changed.find(from), std::string(from).size(), to);
    EXPECT_EQ(parse_error(with("[" + changed + "]", filler)), fmt::format("n.json: {}", say));
  }
}

}  // namespace
}  // namespace dsv4
