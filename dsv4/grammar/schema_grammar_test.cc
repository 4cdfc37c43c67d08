#include "dsv4/grammar/schema_grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsv4/chat/request_error.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

const Case kCases[] = {
    {"true", {"1", "\"x\"", "[1, {\"a\": null}]", "{}", "-0.5e3"}, {"", "01", "[1,]", "{a: 1}"}},
    {R"({"type": "null"})", {"null"}, {"\"null\"", "0"}},
    {R"({"type": "boolean"})", {"true", "false"}, {"True", "1"}},
    {R"({"type": "string"})",
     {R"("")", R"("é\n\u00e9\ud83d\ude00")", R"("/")"},
     {R"("\ud83d")", R"("\x")", "\"\n\"", "\"a"}},
    {R"({"type": "string", "minLength": 2, "maxLength": 3})",
     {R"("ab")", R"("é\nx")", R"("\ud83d\ude00a")"},
     {R"("a")", R"("abcd")"}},
    {R"({"type": "string", "pattern": "^[a-c]+\"?$"})",
     {R"("abc")", R"("a\"")"},
     {R"("abd")", R"("")"}},
    {R"({"type": "string", "format": "date"})", {R"("2026-11-22")"}, {R"("2026-13-01")"}},
    {R"({"type": "integer"})", {"0", "-17", "123456789012345678901"}, {"1.0", "01", "+1", "1e3"}},
    {R"({"type": "integer", "minimum": -12, "maximum": 345})",
     {"-12", "-1", "0", "9", "10", "99", "345"},
     {"-13", "346", "1000", "-0", "-100"}},
    {R"({"type": "integer", "minimum": 7})", {"7", "10", "12345678901234567890"}, {"6", "-7"}},
    {R"({"type": "integer", "maximum": -5})", {"-5", "-50", "-6"}, {"-4", "0", "5"}},
    {R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3})",
     {"1", "2"},
     {"0", "3"}},
    {R"({"type": "integer", "multipleOf": 7})", {"0", "7", "-14", "700"}, {"1", "8", "07"}},
    {R"({"type": "number"})", {"0.5", "-1e+09", "3"}, {".5", "1.", "1e", "NaN"}},
    {R"({"type": "number", "minimum": 0, "maximum": 1})",
     {"0", "1", "0.25", "1.0", "1.000"},
     {"1.01", "2", "-1"}},
    {R"({"type": "number", "exclusiveMinimum": 0, "maximum": 20})",
     {"0.001", "20", "19.99", "20.0", "3"},
     {"0", "0.0", "20.5", "21"}},
    {R"({"type": "number", "minimum": -2, "exclusiveMaximum": 0})",
     {"-2", "-1.5", "-0.1", "-2.0"},
     {"0", "-0", "-2.1", "1"}},
    {R"({"enum": ["a", 1, null, {"k": [1]}]})", {"\"a\"", "1", "null", "{\"k\": [1]}"}, {"\"b\""}},
    {R"({"type": "string", "enum": ["a", 1]})", {"\"a\""}, {"1"}},
    {R"({"const": "x"})", {"\"x\""}, {"\"y\""}},
    {R"({"type": ["integer", "null"]})", {"1", "null"}, {"\"\""}},
    {R"({"type": "integer", "nullable": true})", {"1", "null"}, {"\"\""}},
    {R"({"type": "array", "items": {"type": "integer"}})", {"[]", "[1]", "[1, 2,3]"}, {"[\"a\"]"}},
    {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
     {"[1,2]", "[1,2,3]"},
     {"[]", "[1]", "[1,2,3,4]"}},
    {R"({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": false})",
     {"[]", "[null]", "[null, true]"},
     {"[true]", "[null, true, 1]"}},
    {R"({"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "integer"}})",
     {"[]", "[null]", "[null, 1, 2]"},
     {"[null, null]"}},
    {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
         "required": ["b"], "additionalProperties": false})",
     {R"({"a": 1, "b": "x"})", R"({"b":"x"})"},
     {R"({"a": 1})", R"({"b": "x", "a": 1})", R"({"b": "x", "c": 1})", "{}"}},
    {R"({"type": "object", "properties": {"a": {"type": "integer"}}})",
     {"{}", R"({"a": 1})", R"({"a": 1, "b": []})", R"({"ab": 1, "": 2})"},
     {R"({"a": "x"})", R"({"b": 1, "a": "x"})", R"({"a": 1, "a": "x"})"}},
    {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
     {"{}", R"({"x": 1})"},
     {R"({"x": "y"})"}},
    {R"({"required": ["q"]})", {R"({"q": [1]})"}, {"{}"}},
    {R"({"anyOf": [{"type": "integer"}, {"type": "boolean"}]})", {"1", "true"}, {"null"}},
    {R"({"type": "object", "required": ["t"], "anyOf": [
          {"properties": {"t": {"const": 1}}}, {"properties": {"t": {"const": 2}}}]})",
     {R"({"t": 1})", R"({"t": 2})"},
     {R"({"t": 3})", "{}"}},
    {R"({"allOf": [{"properties": {"a": {"type": "null"}}}, {"required": ["a"]}]})",
     {R"({"a": null})"},
     {"{}"}},
    {R"({"$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"},
          {"type": "null"}]}}, "required": ["next"], "additionalProperties": false}},
         "$ref": "#/$defs/n"})",
     {R"({"next": null})", R"({"next": {"next": {"next": null}}})"},
     {R"({"next": 1})", R"({"next": {}})"}},
    // Keywords that are unknown, or say something of other values, are annotations.
    {R"({"type": "string", "x-label": 3, "id": "a", "links": [], "format": "color", "minItems": 3})",
     {R"("abc")"},
     {"1"}},
    {R"({"pattern": "b"})", {R"("abc")"}, {R"("ac")"}},
    {R"({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3})",
     {R"("ab")", R"("abc")"},
     {R"("a")", R"("abcd")", R"("aB")"}},
    {R"({"type": "string", "format": "date"})",
     {R"("2024-01-31")", R"("2024-02-29")"},
     {R"("2023-02-29")", R"("2024-04-31")"}},
    {R"({"type": "string", "format": "uri-reference"})",
     {R"("https://a.org/b?c=d#e")", R"("../a/b")", R"("/x")", R"("#f")", R"("")"},
     {R"("://")", R"("a b")", R"("{")"}},
    {R"({"type": "string", "format": "regex"})",
     {R"("^ab\\d+$")", R"("a*")"},
     {R"("*")", R"("[")", R"("\\")", R"("(a")"}},
    {R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})",
     {"-9223372036854775808", "9223372036854775807", "0"},
     {"9223372036854775808", "-9223372036854775809"}},
    {R"({"type": "number", "minimum": 0.5, "exclusiveMaximum": 1.25})",
     {"0.5", "0.50", "1.249", "1"},
     {"0.49", "1.25", "1.3", "0"}},
    {R"({"type": "number", "multipleOf": 0.05, "maximum": 20})",
     {"0.05", "-1.1", "19.95", "3", "2.50"},
     {"0.01", "20.05", "0.123"}},
    {R"({"type": "integer", "multipleOf": 12, "minimum": 10, "maximum": 100})",
     {"12", "96"},
     {"0", "6", "108"}},
    {R"({"type": "number", "minimum": 1, "exclusiveMinimum": true})", {"1.01", "2"}, {"1", "1.0"}},
    {R"({"type": "object", "patternProperties": {"^i": {"type": "integer"}, "s$": {"minimum": 5}},
         "properties": {"is": {}}, "additionalProperties": false})",
     {R"({"i": 1})", R"({"is": 7, "ia": 2})", R"({"ks": 6.5})", "{}"},
     {R"({"i": "x"})", R"({"is": 3})", R"({"is": 7.5})", R"({"k": 1})"}},
    {R"({"type": "object", "minProperties": 2, "maxProperties": 3, "properties": {"a": {}}})",
     {R"({"a": 1, "b": 2})", R"({"b": 1, "c": 2, "d": 3})"},
     {"{}", R"({"a": 1})", R"({"a": 1, "b": 2, "c": 3, "d": 4})"}},
    {R"({"type": "object", "propertyNames": {"maxLength": 2}})",
     {R"({"ab": 1})", "{}"},
     {R"({"abc": 1})"}},
    {R"({"type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": true})",
     {"[]", R"(["a", 3, "b"])"},
     {R"(["a", "a"])", R"(["b", 3, "b"])"}},
    {R"({"type": "array", "contains": {"type": "integer"}, "minItems": 2})",
     {R"(["a", 1])", R"([1, "a", "b"])"},
     {"[1]", R"(["a", "b"])"}},
    {R"({"type": "object", "dependencies": {"a": ["b"], "c": {"required": ["d"]}},
         "properties": {"a": {}, "b": {}, "c": {}, "d": {}}})",
     {"{}", R"({"a": 1, "b": 1})", R"({"b": 1})", R"({"c": 1, "d": 1})"},
     {R"({"a": 1})", R"({"c": 1})", R"({"a": 1, "b": 1, "c": 1})"}},
    {R"({"type": "string", "not": {"enum": ["a", "bc"]}})",
     {R"("b")", R"("")"},
     {R"("a")", R"("bc")"}},
    {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
         "not": {"required": ["b"]}})",
     {R"({"a": 1})", R"({"a": 1, "c": 2})"},
     {R"({"a": 1, "b": 2})"}},
    {R"({"type": "integer", "not": {"const": 5}})", {"4", "6", "55"}, {"5"}},
    {R"({"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "v": {}}, "required": ["k"],
         "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["v"]},
         "else": {"properties": {"v": {"type": "null"}}}})",
     {R"({"k": "x", "v": 1})", R"({"k": "y"})", R"({"k": "y", "v": null})"},
     {R"({"k": "x"})", R"({"k": "y", "v": 1})"}},
    {R"({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]})",
     {"-5", "11"},
     {"0", "5", "10"}},
    {R"({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false,
         "oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
     {R"({"a": 1})", R"({"b": 1})"},
     {"{}", R"({"a": 1, "b": 1})"}},
    {R"({"allOf": [{"minimum": 1}, {"minimum": 2}, {"type": "integer"}]})", {"2", "10"}, {"1"}},
    {R"({"allOf": [{"properties": {"a": {"minimum": 3}}}, {"properties": {"a": {"maximum": 5}}}],
         "type": "object", "required": ["a"], "additionalProperties": {"type": "null"}})",
     {R"({"a": null})"},
     {R"({"a": 2})", R"({"a": 4})"}},
    {R"({"enum": [1, 2, 3, "x"], "minimum": 2})", {"2", "3", R"("x")"}, {"1"}},
    {R"({"$id": "https://x.org/root.json", "$ref": "part.json#/$defs/p", "$defs": {"q": {"$id":
         "part.json", "$defs": {"p": {"type": "boolean"}}}}})",
     {"true"},
     {"1"}},
    // An id inside an unknown keyword is none.
    {R"({"$ref": "part.json", "x-one": {"$id": "part.json", "type": "null"}, "$defs": {"a": {"$id":
        "part.json", "type": "boolean"}}})",
     {"true"},
     {"null"}},
    // Up to draft 7, an id beside a reference does not count.
    {R"({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://x.org/base/",
         "definitions": {"a": {"$id": "http://x.org/a.json", "type": "string"},
                         "b": {"$id": "a.json", "type": "number"}},
         "allOf": [{"$id": "http://x.org/", "$ref": "a.json"}]})",
     {"1"},
     {"\"a\""}},
    {R"({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}})", {"null"}, {"1"}},
};

TEST(SchemaGrammar, AcceptsAndRefuses) {
  for (const Case& one : kCases) {
    const JsonValue schema = parse_json(one.schema, "schema");
    TokenMasks masks(json_schema_grammar(schema, JsonSpaces::kSome, "test"), test::demo_tree());
    for (const char* text : one.valid)
      EXPECT_TRUE(test::matches(masks, text)) << one.schema << " should accept " << text;
    for (const char* text : one.invalid)
      EXPECT_FALSE(test::matches(masks, text)) << one.schema << " should not accept " << text;
  }
}

TEST(SchemaGrammar, UnsupportedKeywordsAreRefusedWithTheirPointer) {
  const auto refused = [](const std::string& schema) {
    try {
      json_schema_grammar(parse_json(schema, "schema"), JsonSpaces::kSome, "response_format");
    } catch (const RequestError& error) {
      EXPECT_EQ(error.api_code(), "unsupported_schema");
      EXPECT_EQ(error.param(), "response_format");
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused(R"({"properties": {"a": {"items": {"$dynamicRef": "#"}}}})")
                .find("schema at /properties/a/items: '$dynamicRef'"),
            std::string::npos);
  for (const char* schema :
       {R"({"uniqueItems": true})",
        R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})",
        R"({"unevaluatedProperties": false})",
        R"({"contains": {}, "minContains": 2})",
        R"({"$ref": "https://example.com/s"})",
        R"({"$ref": "#/nowhere"})",
        R"({"$dynamicRef": "#"})",
        R"({"type": "thing"})",
        R"({"type": 3})",
        "false",
        "3",
        R"({"type": "integer", "minimum": 3, "maximum": 2})",
        R"({"minItems": 3, "maxItems": 2})",
        R"({"minLength": 20000})",
        R"x({"pattern": "(?=a)"})x",
        R"({"multipleOf": 0})",
        R"({"enum": []})",
        R"({"type": "string", "enum": [1]})",
        R"({"type": "object", "required": ["a"], "properties": {"a": false}})",
        R"({"not": {}})",
        R"({"not": {"patternProperties": {"a": {}}}})"}) {
    EXPECT_NE(refused(schema), "accepted") << schema;
  }
}

// Whatever is drawn under the masks is JSON, and JSON under the schema: checked by a reader that
// shares nothing with the grammar.
bool is_valid(const nlohmann::json& value, const nlohmann::json& schema) {
  if (schema.contains("enum"))
    return std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end();
  const std::string type = schema.value("type", "");
  if (type == "object") {
    if (!value.is_object()) return false;
    for (const auto& name : schema.value("required", nlohmann::json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const auto properties = schema.value("properties", nlohmann::json::object());
    for (const auto& [key, member] : value.items()) {
      if (properties.contains(key)) {
        if (!is_valid(member, properties[key])) return false;
      } else if (schema.value("additionalProperties", true) == false) {
        return false;
      }
    }
    return true;
  }
  if (type == "array") {
    if (!value.is_array() || value.size() < schema.value("minItems", 0u) ||
        value.size() > schema.value("maxItems", 1000000u))
      return false;
    return std::all_of(value.begin(), value.end(),
                       [&](const auto& item) { return is_valid(item, schema["items"]); });
  }
  if (type == "integer") {
    return value.is_number_integer() && value >= schema.value("minimum", INT64_MIN) &&
           value <= schema.value("maximum", INT64_MAX);
  }
  return type == "string" ? value.is_string() : type == "boolean" ? value.is_boolean() : false;
}

nlohmann::json random_schema(Rng& rng, int depth) {
  switch (rng.below(depth > 0 ? 6 : 4)) {
    case 0:
      return {{"type", "string"}};
    case 1:
      return {{"type", "boolean"}};
    case 2: {
      const int64_t low = rng.below(2000) - 1000;
      return {{"type", "integer"}, {"minimum", low}, {"maximum", low + rng.below(500)}};
    }
    case 3:
      return {{"enum", {"red", 7, nullptr}}};
    case 4: {
      const auto low = static_cast<uint64_t>(rng.below(3));
      return {{"type", "array"},
              {"items", random_schema(rng, depth - 1)},
              {"minItems", low},
              {"maxItems", low + static_cast<uint64_t>(rng.below(3))}};
    }
    default: {
      nlohmann::json out = {{"type", "object"},
                            {"properties", nlohmann::json::object()},
                            {"additionalProperties", false},
                            {"required", nlohmann::json::array()}};
      for (int64_t i = rng.below(4); i > 0; --i) {
        const std::string name = "p" + std::to_string(i);
        out["properties"][name] = random_schema(rng, depth - 1);
        if (rng.below(2) == 0) out["required"].push_back(name);
      }
      return out;
    }
  }
}

TEST(SchemaGrammar, WhatIsDrawnUnderTheMasksIsValid) {
  Rng rng(11);
  int drawn = 0;
  for (int i = 0; i < 150; ++i) {
    const nlohmann::json schema = random_schema(rng, 3);
    TokenMasks masks(
        json_schema_grammar(parse_json(schema.dump(), "schema"),
                            rng.below(2) ? JsonSpaces::kSome : JsonSpaces::kNone, "test"),
        test::demo_tree());
    const auto tokens = test::random_output(masks, rng);
    if (!tokens) continue;
    const std::string text = test::demo_tokenizer().decode(*tokens);
    const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(is_valid(value, schema)) << schema << "\n" << text;
    ++drawn;
  }
  EXPECT_GT(drawn, 100);
}

TEST(SchemaGrammar, AnyObjectIsAnObject) {
  TokenMasks masks(json_object_grammar(), test::demo_tree());
  Rng rng(13);
  int drawn = 0;
  for (int i = 0; i < 40; ++i) {
    const auto tokens = test::random_output(masks, rng);
    if (!tokens) continue;
    const std::string text = test::demo_tokenizer().decode(*tokens);
    EXPECT_TRUE(nlohmann::json::parse(text, nullptr, false).is_object()) << text;
    ++drawn;
  }
  EXPECT_GT(drawn, 10);
}

}  // namespace
}  // namespace dsv4
