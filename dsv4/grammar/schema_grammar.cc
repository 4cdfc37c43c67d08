// Which pieces a schema becomes; schema_parts.cc and schema_object.cc have those of one type.

#include "dsv4/grammar/schema_grammar.h"

#include <algorithm>

#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/regex_grammar.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxRules = 10'000, kMaxBytes = 1 << 20;

}  // namespace

NodeId SchemaGrammar::separator(NodeId from, char c) {
  return pieces_.spaces(builder_.literal(from, std::string(1, c)));
}

NodeId SchemaGrammar::value_of(NodeId from, SchemaTerms terms) {
  if (terms.empty()) return pieces_.any_value(from);
  return builder_.call(from, rule_of(std::move(terms)));
}

RuleId SchemaGrammar::rule_of(SchemaTerms terms) {
  std::sort(terms.begin(), terms.end());
  if (const auto known = rules_.find(terms); known != rules_.end()) return known->second;
  if (rules_.size() >= kMaxRules)
    forms_.refuse(*terms[0].schema, fmt::format("more than {} schemas", kMaxRules));
  const RuleId rule = builder_.declare();
  rules_[terms] = rule;
  put_off_.emplace_back(rule, std::move(terms));
  return rule;
}

void SchemaGrammar::finish() {
  while (!put_off_.empty()) {
    const auto next = std::move(put_off_.back());
    put_off_.pop_back();
    const SchemaTerms& terms = next.second;
    forms_.at(*terms[0].schema, [&] { builder_.end(build(builder_.begin(next.first), terms)); });
  }
}

NodeId SchemaGrammar::build(NodeId from, const SchemaTerms& terms) {
  const JsonValue& place = *terms[0].schema;
  SchemaForm form = forms_.of(terms);
  const NodeId end = builder_.node();
  // A choice and nothing else: each alternative is a rule, which other places may share.
  if (form.is_free() && form.choices.size() == 1 && !form.choices[0].plain.empty()) {
    for (const SchemaTerm& one : form.choices[0].plain)
      builder_.empty_edge(value_of(from, {one}), end);
    return end;
  }
  for (SchemaForm& one : forms_.plain(std::move(form), place))
    build_form(from, std::move(one), place, end);
  return end;
}

void SchemaGrammar::build_form(NodeId from, SchemaForm form, const JsonValue& place, NodeId end) {
  if (form.has_values) {
    const auto values = forms_.values_of(form);
    if (!values.empty()) builder_.empty_edge(literals(from, values), end);
    return;
  }
  if (form.is_free()) {
    builder_.empty_edge(pieces_.any_value(from), end);
    return;
  }
  if (form.types == SchemaForm::kAny) form.types = form.limited;
  const auto add = [&](unsigned type, const auto& piece) {
    if ((form.types & type) != 0) builder_.empty_edge(piece(), end);
  };
  add(SchemaForm::kNull, [&] { return builder_.literal(from, "null"); });
  add(SchemaForm::kTrue, [&] { return builder_.literal(from, "true"); });
  add(SchemaForm::kFalse, [&] { return builder_.literal(from, "false"); });
  add(SchemaForm::kNumber, [&] { return number(from, form); });
  add(SchemaForm::kString, [&] { return string(from, form, StringForm::kJson); });
  add(SchemaForm::kArray, [&] { return array(from, form, place); });
  add(SchemaForm::kObject, [&] { return object(from, form, place); });
}

// The values as JSON. Strings that begin alike share their nodes.
NodeId SchemaGrammar::literals(NodeId from, const std::vector<const JsonValue*>& values) {
  const NodeId end = builder_.node();
  std::map<std::pair<NodeId, char>, NodeId> known;
  const auto shared = [&](NodeId at, const std::string& text) {
    for (const char c : text) {
      const auto [next, is_new] = known.try_emplace({at, c});
      if (is_new) next->second = builder_.literal(at, std::string(1, c));
      at = next->second;
    }
    return at;
  };
  const std::function<NodeId(NodeId, const JsonValue&)> add = [&](NodeId at,
                                                                  const JsonValue& value) {
    if (!value.is_array() && !value.is_object()) return shared(at, to_json(value));
    const bool list = value.is_array();
    at = separator(at, list ? '[' : '{');
    for (size_t i = 0; i < value.items.size(); ++i)
      at = pieces_.spaces(add(i > 0 ? separator(at, ',') : at, value.items[i]));
    for (size_t i = 0; i < value.members.size(); ++i) {
      const auto& [key, member] = value.members[i];
      at = builder_.literal(i > 0 ? separator(at, ',') : at, to_json(JsonValue::of_string(key)));
      at = pieces_.spaces(add(separator(pieces_.spaces(at), ':'), member));
    }
    return builder_.literal(at, list ? "]" : "}");
  };
  for (const JsonValue* value : values) builder_.empty_edge(add(from, *value), end);
  return end;
}

std::optional<NodeId> SchemaGrammar::bare_strings(NodeId from, const JsonValue& schema) {
  const NodeId end = builder_.node();
  bool any = false;
  forms_.at(schema, [&] {
    for (SchemaForm& form : forms_.plain(forms_.of({{&schema}}), schema)) {
      if (form.types == SchemaForm::kAny && form.limited != 0) form.types = form.limited;
      if (form.has_values) {
        for (const JsonValue* value : forms_.values_of(form)) {
          if (!value->is_string()) continue;
          any = true;
          builder_.empty_edge(builder_.literal(from, value->text), end);
        }
      } else if ((form.types & SchemaForm::kString) != 0) {
        any = true;
        builder_.empty_edge(string(from, form, StringForm::kBare), end);
      }
    }
  });
  return any ? std::optional(end) : std::nullopt;
}

Automaton json_object_grammar() {
  AutomatonBuilder builder;
  JsonPieces pieces(builder, JsonSpaces::kSome);
  const RuleId rule = builder.declare();
  builder.end(pieces.any_object(builder.begin(rule)));
  return builder.finish();
}

Automaton json_schema_grammar(const JsonValue& schema, JsonSpaces spaces,
                              const std::string& param) {
  if (to_json(schema).size() > kMaxBytes) {
    throw RequestError("unsupported_schema", param,
                       fmt::format("{}: the schema exceeds {} bytes", param, kMaxBytes));
  }
  try {
    AutomatonBuilder builder;
    SchemaGrammar grammar(builder, schema, spaces, param);
    const RuleId rule = builder.declare();
    builder.end(grammar.value(builder.begin(rule), schema));
    grammar.finish();
    return builder.finish();
  } catch (const RequestError&) {
    throw;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    throw RequestError("unsupported_schema", param, fmt::format("{}: {}", param, error.what()));
  }
}

Automaton regex_format_grammar(std::string_view pattern, const std::string& param) {
  try {
    AutomatonBuilder builder;
    const RuleId rule = builder.declare();
    builder.end(add_regex(builder, builder.begin(rule), pattern, RegexText::kRaw));
    return builder.finish();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    throw RequestError("unsupported_schema", param, fmt::format("{}: {}", param, error.what()));
  }
}

}  // namespace dsv4
