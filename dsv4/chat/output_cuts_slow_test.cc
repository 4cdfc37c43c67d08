// Properties of the parser: how the output is cut does not matter, finished arguments are one JSON
// object, and what the renderer writes is read back.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

using test::Event;
using test::Parsed;

// Neighboring texts as one event, so that a cut is a choice of the test alone.
std::vector<Event> random_output(Rng& rng, int64_t words) {
  static const std::vector<std::string> kWords = {
      "<｜DSML｜tool_calls>",
      "</｜DSML｜tool_calls>",
      "<｜DSML｜invoke name=\"f\">",
      "</｜DSML｜invoke>",
      "<｜DSML｜parameter name=\"a\" string=\"true\">",
      "<｜DSML｜parameter name=\"arguments\" string=\"false\">",
      "</｜DSML｜parameter>",
      "</think>",
      "<think>",
      "\n",
      "\n\n",
      "<",
      "</",
      ">",
      "/>",
      "\"",
      "STOP",
      "STO",
      "{\"a\": 1}",
      "漢",
      "\xe6\xbc",
      "\xff",
      " x ",
      "invoke",
      "｜DSML｜",
      "=",
      "'",
      "<｜User｜>"};
  std::string text;
  for (int64_t n = words; n > 0; --n)
    text += kWords[static_cast<size_t>(rng.below(static_cast<int64_t>(kWords.size())))];
  return test::events_of(text);
}

ParserOptions random_options(Rng& rng) {
  ParserOptions options;
  options.stage = static_cast<OutputStage>(rng.below(3));
  options.tools = rng.below(4) > 0;
  options.continues = rng.below(4) == 0;
  options.max_calls = rng.below(8) == 0 ? 1 + rng.below(2) : 0;
  if (rng.below(3) == 0) options.stops = {"STOP", "\n\n", "x >", "</th"};
  if (rng.below(3) == 0) options.declared = {{"f", {"a"}}};
  if (rng.below(3) == 0) options.types = {{"f", {{"a", JsonTypes::kInteger | JsonTypes::kObject}}}};
  return options;
}

OutputEnd random_end(Rng& rng) {
  return rng.below(2) == 0 ? OutputEnd::kModel : OutputEnd::kLimit;
}

Parsed whole(const std::vector<Event>& events, const ParserOptions& options, OutputEnd end) {
  return test::parse_cut(events, options, end, [](size_t size) { return size; });
}

// Every way to cut a short output.
TEST(OutputCuts, AllCutsOfShortOutputs) {
  Rng rng(7);
  for (int i = 0; i < 1500; ++i) {
    const std::vector<Event> events = random_output(rng, 4);
    const ParserOptions options = random_options(rng);
    const OutputEnd end = random_end(rng);
    const Parsed want = whole(events, options, end);
    size_t bytes = 0;
    for (const Event& event : events) {
      if (const auto* text = std::get_if<std::string>(&event)) bytes += text->size();
    }
    if (bytes > 11) {
      // Too many to try all: every pair of a first cut and a piece size.
      for (size_t first = 1; first <= bytes; ++first) {
        for (size_t size = 1; size <= 3; ++size) {
          bool begun = false;
          ASSERT_EQ(test::parse_cut(events, options, end,
                                    [&](size_t) {
                                      const size_t cut = begun ? size : first;
                                      begun = true;
                                      return cut;
                                    }),
                    want);
        }
      }
      continue;
    }
    // Bit k of `cuts`: a cut after byte k.
    for (size_t cuts = 0; cuts < size_t{1} << bytes; ++cuts) {
      size_t at = 0;
      ASSERT_EQ(test::parse_cut(events, options, end,
                                [&](size_t left) {
                                  size_t size = 1;
                                  while (size < left && !(cuts >> (at + size - 1) & 1)) ++size;
                                  at += size;
                                  return size;
                                }),
                want)
          << cuts;
    }
  }
}

// DSV4_CAMPAIGN=1000000 is the number of cuts that docs/spec/serving.md 10.3 wants.
TEST(OutputCuts, RandomCutsOfLongOutputs) {
  constexpr int kCuts = 5;  // of an output
  const char* const wanted = std::getenv("DSV4_CAMPAIGN");
  const int outputs = wanted == nullptr ? 8000 : std::atoi(wanted) / kCuts;
  Rng rng(8);
  for (int i = 0; i < outputs; ++i) {
    const std::vector<Event> events = random_output(rng, 60);
    const ParserOptions options = random_options(rng);
    const OutputEnd end = random_end(rng);
    const Parsed want = whole(events, options, end);
    for (int k = 0; k < kCuts; ++k) {
      const int64_t most = 1 + rng.below(20);
      ASSERT_EQ(test::parse_cut(events, options, end,
                                [&](size_t) { return static_cast<size_t>(1 + rng.below(most)); }),
                want);
    }
  }
}

TEST(OutputCuts, FinishedArgumentsAreOneObjectAndTextIsUtf8) {
  Rng rng(9);
  int64_t finished = 0;
  for (int i = 0; i < 20000; ++i) {
    const Parsed parsed = whole(random_output(rng, 30), random_options(rng), random_end(rng));
    ASSERT_EQ(valid_utf8_prefix(parsed.reasoning), parsed.reasoning.size());
    ASSERT_EQ(valid_utf8_prefix(parsed.content), parsed.content.size());
    bool all = true;
    for (const auto& call : parsed.calls) {
      ASSERT_EQ(valid_utf8_prefix(call.arguments), call.arguments.size());
      if (call.complete) {
        const auto arguments = nlohmann::json::parse(call.arguments, nullptr, false);
        ASSERT_TRUE(arguments.is_object()) << call.arguments;
        ++finished;
      }
      all = all && call.complete;
    }
    if (parsed.finish == FinishReason::kToolCalls) {
      ASSERT_TRUE(all && !parsed.calls.empty());
    }
  }
  EXPECT_GT(finished, 5000);
}

// Whole pieces of a delta are whole characters.
class Utf8Checker : public OutputSink {
 public:
  void on_reasoning(std::string_view text) override { check(text); }
  void on_content(std::string_view text) override { check(text); }
  void on_call(const std::string& name) override {
    EXPECT_EQ(valid_utf8_prefix(name), name.size());
  }
  void on_arguments(std::string_view json) override { check(json); }
  void on_call_end() override {}

 private:
  static void check(std::string_view text) {
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
  }
};

TEST(OutputCuts, DeltasEndOnCharacters) {
  Rng rng(10);
  for (int i = 0; i < 2000; ++i) {
    Utf8Checker checker;
    OutputParser parser(random_options(rng), checker);
    for (const Event& event : random_output(rng, 40)) {
      if (const Marker* marker = std::get_if<Marker>(&event)) parser.marker(*marker);
      if (const auto* text = std::get_if<std::string>(&event)) {
        for (const char byte : *text) parser.text({&byte, 1});
      }
    }
    parser.finish(OutputEnd::kModel);
  }
}

// An assistant turn whose texts and keys hold nothing that the format cannot carry: tags' quotes in
// names and keys, newlines at the borders of reasoning and content.
ChatTurn random_turn(Rng& rng) {
  const auto plain = [&](bool may_be_empty) {
    std::string text = test::random_text(rng);
    while (!text.empty() && text.front() == '\n') text.erase(0, 1);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.empty() && !may_be_empty ? std::string("x") : text;
  };
  const auto key = [&] {
    std::string text = test::random_text(rng);
    std::erase(text, '"');
    return text;
  };
  ChatTurn turn{.kind = ChatTurn::Kind::kAssistant, .text = plain(true), .reasoning = plain(true)};
  for (int64_t n = rng.below(3); n > 0; --n) {
    const std::string name = key();
    ToolCall call{.name = "f" + name};
    nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
    for (int64_t k = rng.below(4); k > 0; --k) arguments[key()] = test::random_value(rng);
    call.arguments = parse_json(arguments.dump(), "test");
    turn.calls.push_back(std::move(call));
  }
  return turn;
}

TEST(OutputCuts, ReadsWhatTheRendererWrites) {
  Rng rng(11);
  for (int i = 0; i < 5000; ++i) {
    const ChatTurn turn = random_turn(rng);
    Conversation conversation{.thinking = true, .drop_thinking = false, .turns = {turn}};
    conversation.tools.push_back({.name = "f"});
    // Between the header and the end of the turn; text that spells markers is text.
    ChatMessage message;
    OutputParser parser({.stage = OutputStage::kReason, .tools = true}, message);
    const Prompt prompt = render(conversation);
    bool inside = false;
    for (const PromptPiece& piece : prompt.pieces()) {
      if (inside && piece.marker == Marker::kEos) break;
      if (inside && piece.marker) parser.marker(*piece.marker);
      if (inside && !piece.marker) parser.text(piece.text);
      const size_t at = static_cast<size_t>(&piece - prompt.pieces().data());
      if (piece.marker == Marker::kThink && at > 0 &&
          prompt.pieces()[at - 1].marker == Marker::kAssistant)
        inside = true;
    }
    const FinishReason reason = parser.finish(OutputEnd::kModel);
    ASSERT_EQ(reason, turn.calls.empty() ? FinishReason::kStop : FinishReason::kToolCalls);
    ASSERT_EQ(message.reasoning, *turn.reasoning);
    ASSERT_EQ(message.content, turn.text);
    ASSERT_EQ(message.calls.size(), turn.calls.size());
    for (size_t k = 0; k < turn.calls.size(); ++k) {
      ASSERT_EQ(message.calls[k].name, turn.calls[k].name);
      ASSERT_EQ(parse_json(message.calls[k].arguments, "arguments"), turn.calls[k].arguments)
          << message.calls[k].arguments;
    }
  }
}

}  // namespace
}  // namespace dsv4
