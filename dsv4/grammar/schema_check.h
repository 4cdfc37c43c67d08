// Whether a value that a schema names (in enum or const) is valid under another part of the schema.
//
// What it does not do: formats, which are annotations here.

#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/grammar/schema_index.h"
#include "dsv4/grammar/text_set.h"

namespace dsv4 {

// Equality of JSON Schema: 1 and 1.0 are one number, the order of keys does not matter.
bool same_value(const JsonValue& a, const JsonValue& b);

// "null", "boolean", "integer" (also 1.0), "number", "string", "array", "object".
bool has_type(const JsonValue& value, std::string_view type);

// The patterns of a schema, each read once.
class SchemaPatterns {
 public:
  // kBadInput for what is not supported.
  const std::shared_ptr<TextDfa>& of(const std::string& pattern);

 private:
  std::map<std::string, std::shared_ptr<TextDfa>> known_;
};

class SchemaCheck {
 public:
  SchemaCheck(const SchemaIndex& index, SchemaPatterns& patterns)
      : index_(index), patterns_(patterns) {}

  // kBadInput where the schema refers to itself without end or its form is wrong.
  bool valid(const JsonValue& value, const JsonValue& schema);

 private:
  bool valid_type(const JsonValue& value, const JsonValue& schema);
  bool valid_parts(const JsonValue& value, const JsonValue& schema);
  bool valid_number(const JsonValue& value, const JsonValue& schema);
  bool valid_string(const JsonValue& value, const JsonValue& schema);
  bool valid_array(const JsonValue& value, const JsonValue& schema);
  bool valid_object(const JsonValue& value, const JsonValue& schema);
  bool valid_members(const JsonValue& value, const JsonValue& schema);
  bool valid_dependencies(const JsonValue& value, const JsonValue& schema);
  bool count_in(size_t count, const JsonValue& schema, const char* least, const char* most);

  const SchemaIndex& index_;
  SchemaPatterns& patterns_;
  int depth_ = 0;
};

}  // namespace dsv4
