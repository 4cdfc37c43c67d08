#include "dsv4/chat/json_value.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

std::string rewritten(std::string_view text) {
  return to_json(parse_json(text, "test"));
}

TEST(JsonValue, WritesSeparatorsOrderAndEscapes) {
  EXPECT_EQ(rewritten(R"({"b":1,"a":[1,2,{}],"c":{"d":null}})"),
            R"({"b": 1, "a": [1, 2, {}], "c": {"d": null}})");
  EXPECT_EQ(rewritten(R"(["\u0000\u001f\u007f\u2028é\/\b\f\n\r\t\\\""])"),
            "[\"\\u0000\\u001f\x7f\u2028é/\\b\\f\\n\\r\\t\\\\\\\"\"]");
  EXPECT_EQ(rewritten(" [ true , false ] "), "[true, false]");
}

// Values of Python's repr.
TEST(JsonValue, WritesNumbersAsPython) {
  const std::pair<const char*, const char*> kNumbers[] = {
      {"1.50", "1.5"},
      {"1e3", "1000.0"},
      {"1e22", "1e+22"},
      {"1e16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.25e-7", "1.25e-07"},
      {"-0.0", "-0.0"},
      {"-0", "-0.0"},
      {"0", "0"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"0.1", "0.1"},
      {"100.0", "100.0"},
      {"123.456", "123.456"},
      {"-5", "-5"},
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-123456789012345678901234567890", "-123456789012345678901234567890"},
  };
  for (const auto& [text, want] : kNumbers) EXPECT_EQ(rewritten(text), want) << text;
}

TEST(JsonValue, DoublesReadBackAsTheSame) {
  Rng rng(3);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bits = rng.bits();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    JsonValue number;
    number.kind = JsonValue::Kind::kDouble;
    number.number = value;
    ASSERT_EQ(std::strtod(to_json(number).c_str(), nullptr), value);
  }
}

TEST(JsonValue, TheLastOfEqualKeysWinsAtTheFirstPlace) {
  EXPECT_EQ(rewritten(R"({"a":1,"b":2,"a":3,"c":4,"b":{"x":1,"x":2}})"),
            R"({"a": 3, "b": {"x": 2}, "c": 4})");
}

TEST(JsonValue, ReadsWhatItWrote) {
  Rng rng(4);
  for (int i = 0; i < 3000; ++i) {
    const JsonValue value = parse_json(test::random_value(rng).dump(), "test");
    const std::string text = to_json(value);
    ASSERT_EQ(parse_json(text, "test"), value) << text;
    ASSERT_EQ(nlohmann::json::parse(text), nlohmann::json::parse(to_json(value)));
  }
}

TEST(JsonValue, RefusesInOneLine) {
  const std::string deep(kMaxJsonDepth + 1, '[');
  for (const std::string& text :
       {std::string("{"), std::string("[1,]"), std::string("nan"), std::string("1e999"), deep,
        std::string("[1] 2"), std::string("\"\\ud800\""), std::string("1\0 2", 4), std::string()}) {
    EXPECT_FALSE(try_parse_json(text)) << text;
    try {
      parse_json(text, "line 3");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      EXPECT_TRUE(std::string_view(error.what()).starts_with("line 3: "));
    }
  }
  EXPECT_TRUE(try_parse_json(std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']')));
}

TEST(JsonValue, StringsHaveALimit) {
  const auto text = [](size_t size) { return '"' + std::string(size, 'x') + '"'; };
  EXPECT_TRUE(try_parse_json(text(kMaxJsonString)));
  EXPECT_FALSE(try_parse_json(text(kMaxJsonString + 1)));
}

// A tree that searches its keys for each new one would take minutes.
TEST(JsonValue, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += fmt::format("{}\"k{}\":{}", i > 0 ? "," : "", i, i);
  EXPECT_EQ(parse_json(text + "}", "test").members.size(), 200000u);
}

}  // namespace
}  // namespace dsv4
