// JSON Schema (drafts 4 to 2020-12) as an automaton: every text that it accepts is valid under the
// schema (docs/spec/serving.md 3.4). What asserts something and is not supported is a RequestError
// `unsupported_schema` with its JSON pointer and a way out; unknown keywords are annotations.
//
// Keys come in the order in which the schema names them, additional ones last. Where a schema names
// no type, those that its keywords are about are taken, which is narrower and still valid.

#pragma once

#include <map>
#include <string>
#include <tuple>

#include "dsv4/chat/json_value.h"
#include "dsv4/grammar/automaton.h"
#include "dsv4/grammar/json_pieces.h"
#include "dsv4/grammar/schema_form.h"

namespace dsv4 {

class SchemaGrammar {
 public:
  // `root` is what `#` refers to. Both must outlive the compiler. `param` names the field that the
  // schema came in.
  SchemaGrammar(AutomatonBuilder& builder, const JsonValue& root, JsonSpaces spaces,
                const std::string& param)
      : builder_(builder),
        pieces_(builder, spaces),
        json_texts_(builder, RegexText::kInsideJsonString),
        bare_texts_(builder, RegexText::kRaw),
        forms_(root, param) {}

  // A value of `schema`, which is part of root.
  NodeId value(NodeId from, const JsonValue& schema) { return value_of(from, {{&schema}}); }
  // The strings of `schema` as they are, without quotes and escapes; nothing where none is valid.
  std::optional<NodeId> bare_strings(NodeId from, const JsonValue& schema);
  // What value() put off; once, at the end.
  void finish();

 private:
  enum class StringForm { kJson, kBare };

  NodeId value_of(NodeId from, SchemaTerms terms);
  RuleId rule_of(SchemaTerms terms);
  NodeId build(NodeId from, const SchemaTerms& terms);
  void build_form(NodeId from, SchemaForm form, const JsonValue& place, NodeId end);
  NodeId literals(NodeId from, const std::vector<const JsonValue*>& values);

  // schema_parts.cc
  NodeId string(NodeId from, const SchemaForm& form, StringForm spelling);
  NodeId limited_text(NodeId from, const SchemaForm& form, StringForm spelling);
  NodeId number(NodeId from, const SchemaForm& form);
  NodeId array(NodeId from, const SchemaForm& form, const JsonValue& place);
  SchemaTerms item_terms(const SchemaForm& form, size_t index) const;
  NodeId unique_array(NodeId from, const SchemaForm& form, const JsonValue& place);
  std::vector<const JsonValue*> finite_values(const SchemaTerms& terms);
  // schema_object.cc
  NodeId object(NodeId from, SchemaForm form, const JsonValue& place);
  void drop_idle_counts(SchemaForm& form) const;
  std::map<std::vector<bool>, NodeId> other_keys(NodeId from, const SchemaForm& form,
                                                 const JsonValue& place);

  NodeId separator(NodeId from, char c);

  AutomatonBuilder& builder_;
  JsonPieces pieces_;
  TextWriter json_texts_, bare_texts_;
  SchemaForms forms_;
  std::map<SchemaTerms, RuleId> rules_;
  std::vector<std::pair<RuleId, SchemaTerms>> put_off_;
  // Rules of strings with limits, by these and how they are spelled.
  std::map<std::tuple<std::vector<TextPart>, int64_t, int64_t, StringForm>, RuleId> strings_;
};

// Whole grammars of response formats.
Automaton json_object_grammar();
Automaton json_schema_grammar(const JsonValue& schema, JsonSpaces spaces, const std::string& param);
Automaton regex_format_grammar(std::string_view pattern, const std::string& param);

}  // namespace dsv4
