#include "dsv4/chat/coerce.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

JsonTypes types_of(const std::string& schema) {
  const std::string object = R"({"type": "object", "properties": {"a": )" + schema + "}}";
  return parameter_types(parse_json(object, "schema")).at("a");
}

TEST(Coerce, TypesOfSchemas) {
  EXPECT_EQ(types_of(R"({"type": "integer"})"), JsonTypes::kInteger);
  EXPECT_EQ(types_of(R"({"type": ["string", "null"]})"), JsonTypes::kString | JsonTypes::kNull);
  EXPECT_EQ(types_of(R"({"enum": ["x", true]})"), JsonTypes::kString | JsonTypes::kBoolean);
  EXPECT_EQ(types_of(R"({"const": 2.5})"), JsonTypes::kNumber);
  EXPECT_EQ(types_of(R"({"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "array"}]}]})"),
            JsonTypes::kInteger | JsonTypes::kArray);
  for (const char* unknown :
       {"true", "{}", R"({"$ref": "#/$defs/x"})", R"({"type": "date"})", R"({"type": 5})",
        R"({"type": ["integer", "date"]})", R"({"anyOf": [{"type": "integer"}, {}]})"})
    EXPECT_EQ(types_of(unknown), JsonTypes::kNone) << unknown;
  EXPECT_TRUE(parameter_types(parse_json("{}", "schema")).empty());
}

TEST(Coerce, StringsThatAreDeclaredOtherwise) {
  const auto value = [](std::string_view text, JsonTypes types) {
    return coerced(text, /*is_string=*/true, types).value_or("stays");
  };
  EXPECT_EQ(value("5", JsonTypes::kInteger), "5");
  EXPECT_EQ(value(" -7\n", JsonTypes::kInteger), "-7");
  EXPECT_EQ(value("5.0", JsonTypes::kInteger), "5.0");
  EXPECT_EQ(value("5", JsonTypes::kNumber), "5");
  EXPECT_EQ(value("true", JsonTypes::kBoolean), "true");
  EXPECT_EQ(value("False", JsonTypes::kBoolean | JsonTypes::kNull), "false");
  EXPECT_EQ(value("None", JsonTypes::kBoolean | JsonTypes::kNull), "null");
  EXPECT_EQ(value("[1, \"x\"]", JsonTypes::kArray), "[1, \"x\"]");
  EXPECT_EQ(value("{\"a\": 1}", JsonTypes::kObject), "{\"a\": 1}");
  // What does not fit, and what may be a string.
  for (const char* text : {"5.5", "five", "", "true", "\"5\"", "[5]", "5 6", "NaN", "0x5", "05"})
    EXPECT_EQ(value(text, JsonTypes::kInteger), "stays") << text;
  EXPECT_EQ(value("True", JsonTypes::kInteger), "stays");
  EXPECT_EQ(value("5", JsonTypes::kInteger | JsonTypes::kString), "stays");
  EXPECT_EQ(value("5", JsonTypes::kNone), "stays");
}

TEST(Coerce, OtherValuesThatAreDeclaredStrings) {
  const auto value = [](std::string_view text, JsonTypes types) {
    return coerced(text, /*is_string=*/false, types).value_or("stays");
  };
  EXPECT_EQ(value(" 5 ", JsonTypes::kString), "\"5\"");
  EXPECT_EQ(value("[1, \"x\"]", JsonTypes::kString), "\"[1, \\\"x\\\"]\"");
  EXPECT_EQ(value("\"5\"", JsonTypes::kInteger), "5");
  EXPECT_EQ(value("True", JsonTypes::kBoolean), "true");
  for (const char* text : {"\"x\"", "x"}) EXPECT_EQ(value(text, JsonTypes::kString), "stays");
  EXPECT_EQ(value("\"x\"", JsonTypes::kInteger), "stays");
  EXPECT_EQ(value("5", JsonTypes::kInteger | JsonTypes::kString), "stays");
  EXPECT_EQ(value("[5]", JsonTypes::kInteger), "stays");
  EXPECT_EQ(value("5", JsonTypes::kNone), "stays");
}

}  // namespace
}  // namespace dsv4
