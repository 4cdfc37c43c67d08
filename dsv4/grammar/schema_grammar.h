// JSON Schema (2020-12 and 7) as an automaton: every text that it accepts is valid under the schema
// (docs/spec/serving.md 3.4 names the subset). What is not in the subset is a RequestError
// `unsupported_schema` with its JSON pointer, never dropped.
//
// Keys come in the order of `properties`, additional ones last. Where a schema names no type, the
// one that its keywords are about is taken, which is narrower and still valid.

#pragma once

#include <deque>
#include <map>
#include <string>

#include "dsv4/chat/json_value.h"
#include "dsv4/grammar/automaton.h"
#include "dsv4/grammar/json_pieces.h"

namespace dsv4 {

class SchemaGrammar {
 public:
  // `root` is what `#` refers to. Both must outlive the compiler. `param` names the field that the
  // schema came in.
  SchemaGrammar(AutomatonBuilder& builder, const JsonValue& root, JsonSpaces spaces,
                std::string param)
      : builder_(builder), pieces_(builder, spaces), root_(root), param_(std::move(param)) {}

  // A value of `schema`, which is part of root and stands at `pointer`.
  NodeId value(NodeId from, const JsonValue& schema, const std::string& pointer);
  // The strings of `schema` as they are, without quotes and escapes; nothing where none is valid.
  std::optional<NodeId> bare_strings(NodeId from, const JsonValue& schema,
                                     const std::string& pointer);
  // What schema() put off; once, at the end.
  void finish();

 private:
  struct Place {
    const JsonValue* schema;
    std::string pointer;
  };
  enum class StringForm { kJson, kBare };

  [[noreturn]] void refuse(const std::string& pointer, const std::string& what) const;
  RuleId rule_of(const JsonValue& schema, const std::string& pointer);
  NodeId build(NodeId from, const JsonValue& schema, const std::string& pointer);
  NodeId build_type(NodeId from, const std::string& type, const JsonValue& schema,
                    const std::string& pointer);
  NodeId build_string(NodeId from, const JsonValue& schema, const std::string& pointer,
                      StringForm form);
  NodeId bare_text(NodeId from, int64_t min, int64_t max);
  NodeId build_number(NodeId from, bool integer, const JsonValue& schema,
                      const std::string& pointer);
  NodeId build_array(NodeId from, const JsonValue& schema, const std::string& pointer);
  NodeId build_object(NodeId from, const JsonValue& schema, const std::string& pointer);
  NodeId separator(NodeId from, char c);

  // The values of enum or const that have the schema's type.
  std::vector<const JsonValue*> values_of(const std::vector<JsonValue>& values,
                                          const JsonValue& schema,
                                          const std::string& pointer) const;
  // Each alternative together with what stands beside them.
  std::vector<Place> alternatives_of(const char* keyword, const JsonValue& schema,
                                     const std::string& pointer);
  void check_keywords(const JsonValue& schema, const std::string& pointer) const;
  std::vector<std::string> types_of(const JsonValue& schema, const std::string& pointer) const;
  Place resolve(const std::string& reference, const std::string& pointer) const;
  const JsonValue& merged(const JsonValue& schema, const std::string& pointer);
  JsonValue merge(const JsonValue& a, const JsonValue& b, const std::string& pointer) const;
  JsonValue merge_keyword(const std::string& key, const JsonValue& a, const JsonValue& b,
                          const std::string& pointer) const;
  std::optional<int64_t> count(const JsonValue& schema, const char* key,
                               const std::string& pointer) const;

  AutomatonBuilder& builder_;
  JsonPieces pieces_;
  const JsonValue& root_;
  const std::string param_;
  std::map<const JsonValue*, RuleId> rules_;
  std::optional<RuleId> any_character_;  // of bare_text()
  int bare_depth_ = 0;                   // of $ref and alternatives in bare_strings()
  std::vector<std::pair<RuleId, Place>> put_off_;
  std::deque<JsonValue> owned_;  // schemas that merging made
};

// Whole grammars of response formats.
Automaton json_object_grammar();
Automaton json_schema_grammar(const JsonValue& schema, JsonSpaces spaces, const std::string& param);
Automaton regex_format_grammar(std::string_view pattern, const std::string& param);

}  // namespace dsv4
