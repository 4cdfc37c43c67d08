// The parser's table, row by row (docs/spec/serving.md 2.2 to 2.4).

#include "dsv4/chat/output_parser.h"

#include <gtest/gtest.h>

#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

using test::Parsed;

// ◆ stands for the DSML marker.
std::string spelled(std::string text) {
  const std::string diamond = "◆", dsml(spelling(Marker::kDsml));
  for (size_t at = text.find(diamond); at != text.npos; at = text.find(diamond))
    text.replace(at, diamond.size(), dsml);
  return text;
}

Parsed parse(const std::string& text, ParserOptions options = {.tools = true},
             OutputEnd end = OutputEnd::kModel) {
  return test::parse_whole(spelled(text), options, end);
}
Parsed reason(const std::string& text, OutputEnd end = OutputEnd::kModel) {
  return parse(text, {.stage = OutputStage::kReason, .tools = true}, end);
}

// Arguments of one call, from what stands between its tags.
std::string arguments(const std::string& inside, const ParserOptions& options = {.tools = true}) {
  const Parsed parsed =
      parse("<◆tool_calls><◆invoke name=\"f\">" + inside + "</◆invoke></◆tool_calls>", options);
  EXPECT_EQ(parsed.calls.size(), 1u) << inside;
  EXPECT_EQ(parsed.finish, FinishReason::kToolCalls) << inside;
  return parsed.calls.empty() ? "" : parsed.calls[0].arguments;
}
std::string parameter(const std::string& attributes, const std::string& value) {
  return "<◆parameter " + attributes + ">" + value + "</◆parameter>\n";
}

TEST(OutputParser, ReasoningAndContent) {
  Parsed parsed = reason("\n\nR\n\nS\n\n</think>\n\nC\n\nD\n");
  EXPECT_EQ(parsed.reasoning, "R\n\nS");
  EXPECT_EQ(parsed.content, "C\n\nD\n");
  EXPECT_EQ(parsed.finish, FinishReason::kStop);
  EXPECT_EQ(reason("<think>R</think>C").reasoning, "R") << "the first marker is a repetition";
  EXPECT_EQ(reason("R<think>").reasoning, "R<think>");
  EXPECT_EQ(reason("R\n").reasoning, "R\n");
  EXPECT_EQ(reason("</think>").content, "");
  EXPECT_EQ(parse("C<think>D</think>E").content, "CDE");
}

TEST(OutputParser, AContinuedPrefixKeepsItsNewlines) {
  EXPECT_EQ(parse("\n\nC", {.continues = true}).content, "\n\nC");
  const ParserOptions options{.stage = OutputStage::kReason, .continues = true};
  const Parsed parsed = parse("\nR</think>\nC", options);
  EXPECT_EQ(parsed.reasoning, "\nR");
  EXPECT_EQ(parsed.content, "C");
}

TEST(OutputParser, TagsInContent) {
  EXPECT_EQ(parse("C </◆foo\n bar>D").content, "C D");
  EXPECT_EQ(parse("C <◆foo>D").content, spelled("C <◆foo>D"));
  EXPECT_EQ(parse("C <◆<◆<").content, spelled("C <◆<◆<"));
  EXPECT_EQ(parse("C ◆tool_calls>").content, spelled("C ◆tool_calls>"));
  EXPECT_EQ(parse("C <|DSML|tool_calls>").content, "C <|DSML|tool_calls>");
  EXPECT_EQ(reason("R </◆foo>S").reasoning, spelled("R </◆foo>S"));
  // A marker spelled with ordinary tokens is text.
  ChatMessage message;
  OutputParser parser({.tools = true}, message);
  parser.text("<｜DSML｜tool_calls>");
  parser.finish(OutputEnd::kModel);
  EXPECT_EQ(message.content, "<｜DSML｜tool_calls>");
}

constexpr const char* kCall = "<◆invoke name=\"f\">\n</◆invoke>\n";

TEST(OutputParser, WordsThatOpenTheBlock) {
  for (const char* word :
       {"tool_calls", "toolcalls", "tool_call", "tools", "tool", "function_calls", " calls"}) {
    const Parsed parsed = parse(fmt::format("C\n\n<◆{}>\n{}</◆{}>junk", word, kCall, word));
    EXPECT_EQ(parsed.content, "C") << word;
    EXPECT_EQ(parsed.calls.size(), 1u) << word;
    EXPECT_EQ(parsed.finish, FinishReason::kToolCalls);
  }
  EXPECT_EQ(parse(std::string("C\n") + kCall).calls.size(), 1u) << "a call without a block";
  EXPECT_EQ(reason(fmt::format("R\n\n<◆tool_calls>{}", kCall)).reasoning, "R");
  EXPECT_EQ(reason(fmt::format("R\n\n<◆tool_calls>{}</◆tool_calls></think>C", kCall)).content, "");
  EXPECT_EQ(parse(kCall, {.stage = OutputStage::kBlock, .tools = true}).calls.size(), 1u);
}

TEST(OutputParser, WithoutToolsMarkupIsContent) {
  const std::string markup = fmt::format("C\n\n<◆tool_calls>\n{}</◆tool_calls>", kCall);
  EXPECT_EQ(parse(markup, {}).content, spelled(markup));
  const Parsed parsed = parse("R<◆tool_calls></think>C</think>D", {.stage = OutputStage::kReason});
  EXPECT_EQ(parsed.reasoning, spelled("R<◆tool_calls>"));
  EXPECT_EQ(parsed.content, "CD");
}

TEST(OutputParser, BlocksAndNames) {
  const Parsed parsed = parse(
      "<◆tool_calls>junk </◆foo><◆bar><◆ invoke\tname = \"a b\" x=\"y\"/>"
      "<◆invoke name=\"◆<\" >\n</◆invoke>< <◆invoke name=\"c\">\n<◆invoke name=\"d\"></◆ invoke>"
      "</◆tool_calls><◆tool_calls><◆invoke name=\"e\"/>");
  ASSERT_EQ(parsed.calls.size(), 4u);
  EXPECT_EQ(parsed.calls[0].name, "a b");
  EXPECT_EQ(parsed.calls[1].name, spelled("◆<"));
  EXPECT_EQ(parsed.calls[3].name, "d");
  for (const auto& call : parsed.calls) EXPECT_EQ(call.arguments, "{}");
}

TEST(OutputParser, AnyClosingTagEndsACall) {
  EXPECT_EQ(parse("<◆tool><◆invoke name=\"f\"></◆x>\n<◆invoke name=\"g\"></◆tool>").calls.size(),
            2u);
  const Parsed parsed =
      parse("<◆tool><◆invoke name=\"f\"></◆invoke\n<◆invoke name=\"g\"></◆invoke></◆tool>");
  EXPECT_EQ(parsed.calls.size(), 2u);
  EXPECT_EQ(parsed.finish, FinishReason::kToolCalls);
}

TEST(OutputParser, StringArguments) {
  EXPECT_EQ(arguments(parameter("name=\"a\" string=\"true\"", " x\"\\\n\t\x01\x7f\u2028é ")),
            "{\"a\": \" x\\\"\\\\\\n\\t\\u0001\x7f\u2028é \"}");
  EXPECT_EQ(arguments(parameter("string=true name=a\"b", "x")), "{\"a\\\"b\": \"x\"}");
  EXPECT_EQ(arguments(parameter("x=1 name='a' string=\"true\" y", "x")), "{\"a\": \"x\"}");
  EXPECT_EQ(arguments(parameter("name=\"a>b\" string=\"true\"", "<◆parameter </ ◆</think>")),
            spelled("{\"a>b\": \"<◆parameter </ ◆</think>\"}"));
  EXPECT_EQ(arguments(parameter("name=\"a\" string=\"true\"", "1") +
                      parameter("name=\"a\" string=\"true\"", "2")),
            "{\"a\": \"1\", \"a\": \"2\"}");
}

TEST(OutputParser, OtherArgumentsAreJsonOrStrings) {
  const auto value = [](const std::string& text, const std::string& string = "false") {
    return arguments(parameter("name=\"a\" string=\"" + string + "\"", text));
  };
  EXPECT_EQ(value(" [1, {\"b\": 1e5}]\n"), "{\"a\": [1, {\"b\": 1e5}]}");
  EXPECT_EQ(value("12345678901234567890123"), "{\"a\": 12345678901234567890123}");
  EXPECT_EQ(value("1", "maybe"), "{\"a\": 1}");
  EXPECT_EQ(arguments(parameter("name=\"a\"", "true")), "{\"a\": true}");
  for (const char* text : {"[1,", " x ", "", "NaN", "Infinity", "1 2", "{'a': 1}"})
    EXPECT_EQ(value(text), "{\"a\": " + nlohmann::json(text).dump() + "}");
}

TEST(OutputParser, CallsWithoutParametersMayHaveAJsonBody) {
  EXPECT_EQ(arguments(""), "{}");
  EXPECT_EQ(arguments("\n{\"a\": 1}\n"), "{\"a\": 1}");
  EXPECT_EQ(arguments("[1]"), "{}");
  const std::string one = parameter("name=\"a\" string=\"true\"", "y");
  EXPECT_EQ(arguments("x" + one + "{}"), "{\"a\": \"y\"}");
}

TEST(OutputParser, AWholeObjectInOneParameterIsUnwrapped) {
  const ParserOptions options{.tools = true, .declared = {{"f", {"a", "b"}}}};
  const auto whole = [&](const std::string& attributes, const std::string& text) {
    return arguments(parameter(attributes, text), options);
  };
  EXPECT_EQ(whole("name=\"arguments\" string=\"false\"", " {\"a\": 1}\n"), "{\"a\": 1}");
  EXPECT_EQ(whole("name=\"input\" string=\"true\"", "{\"a\": 1, \"b\": 2}"),
            "{\"a\": 1, \"b\": 2}");
  EXPECT_EQ(whole("name=\"input\" string=\"false\"", "{\"c\": 1}"), "{\"input\": {\"c\": 1}}");
  EXPECT_EQ(whole("name=\"input\" string=\"true\"", "x"), "{\"input\": \"x\"}");
  EXPECT_EQ(arguments(parameter("name=\"input\" string=\"false\"", "{\"a\": 1}") +
                          parameter("name=\"a\" string=\"false\"", "2"),
                      options),
            "{\"input\": {\"a\": 1}, \"a\": 2}");
  EXPECT_EQ(arguments(parameter("name=\"input\" string=\"false\"", "{\"input\": 1}"),
                      {.tools = true, .declared = {{"f", {"input"}}}}),
            "{\"input\": {\"input\": 1}}");
}

TEST(OutputParser, ValuesBecomeTheDeclaredTypes) {
  const ParserOptions options{
      .tools = true,
      .types = {
          {"f",
           {{"n", JsonTypes::kInteger}, {"s", JsonTypes::kString}, {"any", JsonTypes::kNone}}}}};
  EXPECT_EQ(arguments(parameter("name=\"n\" string=\"true\"", " 5 ") +
                          parameter("name=\"s\" string=\"false\"", "5") +
                          parameter("name=\"any\" string=\"true\"", "5") +
                          parameter("name=\"other\" string=\"true\"", "5"),
                      options),
            "{\"n\": 5, \"s\": \"5\", \"any\": \"5\", \"other\": \"5\"}");
  EXPECT_EQ(arguments(parameter("name=\"n\" string=\"true\"", "five"), options),
            "{\"n\": \"five\"}");
  // A value that is cut is left open, and was not sent.
  const Parsed cut = parse("<◆invoke name=\"f\"><◆parameter name=\"n\" string=\"true\">5", options);
  EXPECT_EQ(cut.calls[0].arguments, "");
}

TEST(OutputParser, CoercedCallsCountAsRepaired) {
  for (const std::string value : {"5", "five"}) {
    ChatMessage message;
    OutputParser parser({.tools = true, .types = {{"f", {{"n", JsonTypes::kInteger}}}}}, message);
    parser.text("<");
    parser.marker(Marker::kDsml);
    parser.text("invoke name=\"f\">\n<");
    parser.marker(Marker::kDsml);
    parser.text("parameter name=\"n\" string=\"true\">" + value + "</");
    parser.marker(Marker::kDsml);
    parser.text("parameter>\n</");
    parser.marker(Marker::kDsml);
    parser.text("invoke>");
    parser.finish(OutputEnd::kModel);
    EXPECT_EQ(parser.counts().calls, 1);
    EXPECT_EQ(parser.counts().repaired, value == "5" ? 1 : 0) << value;
  }
}

TEST(OutputParser, StopStrings) {
  const auto stopped = [](const std::string& text, std::vector<std::string> stops) {
    return parse(text, {.tools = true, .stops = std::move(stops)});
  };
  Parsed parsed = stopped("abcSTOPdef", {"STOP"});
  EXPECT_EQ(parsed.content, "abc");
  EXPECT_EQ(parsed.finish, FinishReason::kStop);
  EXPECT_EQ(parsed.stop_string, "STOP");
  EXPECT_EQ(stopped("abcSTO", {"STOP"}).content, "abcSTO");
  EXPECT_EQ(stopped("aaab", {"aab"}).content, "a");
  EXPECT_EQ(stopped("xabcd", {"abcd", "bc"}).content, "xa") << "the earliest end wins";
  EXPECT_EQ(stopped("C\n\n<◆tool_calls>", {"\n\n"}).content, "C");
  EXPECT_EQ(stopped("C\n\n<◆tool_calls>", {"<"}).content, "C\n\n");
  EXPECT_EQ(stopped("C<◆tool_calls>", {"tool"}).content, "C") << "half a tag is dropped";
  EXPECT_EQ(stopped("C</think>D", {"</think>"}).content, "C");
  EXPECT_EQ(stopped("\n\nC", {"\n\n"}).content, "") << "raw bytes, leading newlines too";
  parsed = stopped(std::string("C<◆tool_calls>\n") + kCall, {"invoke", "\n<"});
  EXPECT_EQ(parsed.calls.size(), 1u) << "only content stops";
  EXPECT_EQ(parse("R STOP</think>C", {.stage = OutputStage::kReason, .stops = {"STOP"}}).content,
            "C");
  EXPECT_EQ(stopped("C STOP D", {"STOP"}), stopped("C STOP", {"STOP"}));
}

TEST(OutputParser, EndsOfOutput) {
  const OutputEnd limit = OutputEnd::kLimit;
  const ParserOptions tools{.tools = true};
  for (const OutputEnd end : {OutputEnd::kModel, limit}) {
    EXPECT_EQ(parse("C\n<", tools, end).content, "C\n<");
    EXPECT_EQ(parse("C\n</", tools, end).content, "C\n</");
    EXPECT_EQ(parse("C\n<◆tool_c", tools, end).content, "C\n");
    EXPECT_EQ(parse("C</◆tool_c", tools, end).content, "C");
    EXPECT_EQ(parse("<◆tool><◆invoke name=\"f", tools, end).calls.size(), 0u);
    const Parsed value =
        parse("<◆tool><◆invoke name=\"f\"><◆parameter name=\"a\" string=\"true\">x<", tools, end);
    ASSERT_EQ(value.calls.size(), 1u);
    EXPECT_EQ(value.calls[0].arguments, "{\"a\": \"x");
    EXPECT_FALSE(value.calls[0].complete);
    EXPECT_EQ(value.finish, end == limit ? FinishReason::kLength : FinishReason::kStop);
  }
  const std::string between =
      "<◆tool><◆invoke name=\"f\"><◆parameter name=\"a\" string=\"true\">x</◆para";
  EXPECT_EQ(parse(between).calls[0].arguments, "{\"a\": \"x\"}");
  EXPECT_EQ(parse(between).finish, FinishReason::kToolCalls);
  EXPECT_EQ(parse(between, tools, limit).calls[0].arguments, "{\"a\": \"x\"");
  EXPECT_EQ(parse(between, tools, limit).finish, FinishReason::kLength);
  EXPECT_EQ(parse("<◆tool><◆invoke name=\"f\">").calls[0].arguments, "{}");
  EXPECT_EQ(parse("C", tools, limit).finish, FinishReason::kLength);
}

TEST(OutputParser, OneCallOnly) {
  const Parsed parsed =
      parse(std::string("<◆tool>") + kCall + kCall + "</◆tool>", {.tools = true, .max_calls = 1});
  EXPECT_EQ(parsed.calls.size(), 1u);
  EXPECT_EQ(parsed.finish, FinishReason::kToolCalls);
}

TEST(OutputParser, InvalidBytesBecomeReplacementCharacters) {
  EXPECT_EQ(parse("a\xff\xe4\xb8z").content, "a\uFFFD\uFFFDz");
  EXPECT_EQ(parse("a\xe4\xb8</think>b").content, "a\uFFFDb");
  EXPECT_EQ(parse("a\xe4\xb8").content, "a\uFFFD");
  EXPECT_EQ(arguments(parameter("name=\"a\" string=\"true\"", "\xff")), "{\"a\": \"\uFFFD\"}");
}

TEST(OutputParser, ACallThatGrowsWithoutEndIsAnError) {
  ChatMessage message;
  OutputParser parser({.stage = OutputStage::kBlock, .tools = true}, message);
  const std::string piece(1 << 20, 'x');
  for (const test::Event& event :
       test::events_of(spelled("<◆invoke name=\"f\"><◆parameter name=\"a\" string=\"false\">"))) {
    if (const Marker* marker = std::get_if<Marker>(&event)) parser.marker(*marker);
    if (const auto* text = std::get_if<std::string>(&event)) parser.text(*text);
  }
  for (int i = 0; i < 16 && !parser.done(); ++i) parser.text(piece);
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(parser.finish(OutputEnd::kModel), FinishReason::kError);
}

TEST(OutputParser, Counts) {
  ChatMessage message;
  OutputParser parser({.tools = true, .declared = {{"f", {}}}}, message);
  for (const test::Event& event : test::events_of(spelled(
           "<◆tool><◆invoke name=\"f\"></◆invoke><◆invoke name=\"g\"></◆x><◆invoke name=\"f\">"
           "<◆parameter name=\"a\" string=\"true\">"))) {
    if (const Marker* marker = std::get_if<Marker>(&event)) parser.marker(*marker);
    if (const auto* text = std::get_if<std::string>(&event)) parser.text(*text);
  }
  parser.finish(OutputEnd::kModel);
  EXPECT_EQ(parser.counts().calls, 2);
  EXPECT_EQ(parser.counts().repaired, 1);
  EXPECT_EQ(parser.counts().unknown, 1);
  EXPECT_EQ(parser.counts().truncated, 1);
}

}  // namespace
}  // namespace dsv4
