// Strings, numbers and arrays of a schema.

#include <algorithm>

#include "dsv4/grammar/schema_grammar.h"

namespace dsv4 {

// Places with the same limits share one rule: a pattern or a length takes many nodes.
NodeId SchemaGrammar::string(NodeId from, const SchemaForm& form, StringForm spelling) {
  const int64_t max = form.max_length.value_or(-1);
  const bool limited = !form.texts.empty() || form.min_length > 0 || max >= 0;
  if (!limited) return limited_text(from, form, spelling);
  std::vector<TextPart> parts = form.texts;
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  const auto [rule, is_new] =
      strings_.try_emplace({std::move(parts), form.min_length, max, spelling});
  if (is_new) {
    rule->second = builder_.declare();
    const RuleId id = rule->second;
    builder_.end(limited_text(builder_.begin(id), form, spelling));
  }
  return builder_.call(from, rule->second);
}

NodeId SchemaGrammar::limited_text(NodeId from, const SchemaForm& form, StringForm spelling) {
  const bool json = spelling == StringForm::kJson;
  // Without a pattern, characters may be written as escapes too.
  if (json && form.texts.empty())
    return pieces_.string(from, form.min_length, form.max_length.value_or(-1));
  const NodeId begin = json ? builder_.literal(from, "\"") : from;
  TextWriter& texts = json ? json_texts_ : bare_texts_;
  const bool single = form.texts.size() == 1 && form.texts[0].wanted.value_or(false) &&
                      form.min_length == 0 && !form.max_length;
  // One pattern alone need not be deterministic.
  const NodeId last = single ? texts.add(begin, form.texts[0].texts->nfa())
                             : texts.add_one(begin, form.texts, form.min_length, form.max_length);
  return json ? builder_.literal(last, "\"") : last;
}

NodeId SchemaGrammar::number(NodeId from, const SchemaForm& form) {
  const bool whole = (form.types & SchemaForm::kFraction) == 0;
  const bool unwhole = (form.types & SchemaForm::kInteger) == 0;
  if (!form.low && !form.high && form.multiples.empty() && !unwhole)
    return whole ? pieces_.integer(from) : pieces_.number(from);
  return add_number(builder_, from,
                    {.whole = whole,
                     .unwhole = unwhole,
                     .low = form.low,
                     .high = form.high,
                     .multiples = form.multiples});
}

// What an item at this place has to be.
SchemaTerms SchemaGrammar::item_terms(const SchemaForm& form, size_t index) const {
  SchemaTerms terms;
  for (const SchemaForm::ArrayPart& part : form.arrays) {
    if (index < part.prefix.size()) {
      terms.push_back({part.prefix[index]});
    } else {
      terms.insert(terms.end(), part.rest.begin(), part.rest.end());
    }
  }
  std::sort(terms.begin(), terms.end());
  terms.erase(std::unique(terms.begin(), terms.end()), terms.end());
  return terms;
}

NodeId SchemaGrammar::array(NodeId from, const SchemaForm& form, const JsonValue& place) {
  if (form.unique && form.max_items.value_or(2) > 1) return unique_array(from, form, place);
  if (form.contains.size() > 3)
    forms_.refuse(place, "more than 3 contains for one array are not supported");
  size_t fixed = 0;
  for (const SchemaForm::ArrayPart& part : form.arrays) fixed = std::max(fixed, part.prefix.size());
  const size_t all = (size_t{1} << form.contains.size()) - 1;
  const auto steps = form.max_items
                         ? static_cast<size_t>(*form.max_items)
                         : std::max({fixed, static_cast<size_t>(form.min_items), size_t{1}});
  // [which of `contains` were found] behind the items so far; -1: not to be reached.
  std::vector<NodeId> at(all + 1, -1);
  at[0] = separator(from, '[');
  const NodeId end = builder_.node();
  const auto ends = [&] {
    if (at[all] >= 0) builder_.empty_edge(at[all], end);
  };
  // One more item from each place to the places of `next`.
  const auto item = [&](size_t index, std::vector<NodeId>& next) {
    const SchemaTerms terms = item_terms(form, index);
    for (size_t found = 0; found <= all; ++found) {
      if (at[found] < 0) continue;
      const NodeId begin = index > 0 ? separator(at[found], ',') : at[found];
      for (size_t adds = 0; adds <= all; ++adds) {
        if ((adds & found) != 0) continue;
        SchemaTerms mine = terms;
        for (size_t i = 0; i < form.contains.size(); ++i)
          if ((adds >> i & 1) != 0) mine.push_back(form.contains[i]);
        NodeId& target = next[found | adds];
        if (target < 0) target = builder_.node();
        builder_.empty_edge(pieces_.spaces(value_of(begin, mine)), target);
      }
    }
  };
  for (size_t index = 0; index < steps; ++index) {
    if (index >= static_cast<size_t>(form.min_items)) ends();
    std::vector<NodeId> next(all + 1, -1);
    item(index, next);
    at = std::move(next);
  }
  if (steps >= static_cast<size_t>(form.min_items)) ends();
  if (!form.max_items) {
    std::vector<NodeId> loop;
    for (const NodeId last : at) {
      loop.push_back(builder_.node());
      if (last >= 0) builder_.empty_edge(last, loop.back());
    }
    at = loop;
    item(steps, at);
    builder_.empty_edge(at[all], end);
  }
  return builder_.literal(end, "]");
}

// The values that an item may be where they are few; empty where they are not.
std::vector<const JsonValue*> SchemaGrammar::finite_values(const SchemaTerms& terms) {
  static const JsonValue kNull, kTrue = JsonValue::of_bool(true),
                                kFalse = JsonValue::of_bool(false);
  std::vector<const JsonValue*> values;
  if (terms.empty()) return values;
  for (const SchemaForm& form : forms_.plain(forms_.of(terms), *terms[0].schema)) {
    constexpr unsigned kFew = SchemaForm::kNull | SchemaForm::kBoolean;
    std::vector<const JsonValue*> some;
    if (form.has_values) {
      some = forms_.values_of(form);
    } else if ((form.types & ~kFew) == 0) {
      for (const auto& [type, value] :
           {std::pair(SchemaForm::kNull, &kNull), std::pair(SchemaForm::kTrue, &kTrue),
            std::pair(SchemaForm::kFalse, &kFalse)})
        if ((form.types & type) != 0) some.push_back(value);
    } else {
      return {};
    }
    for (const JsonValue* one : some) {
      const bool known = std::any_of(values.begin(), values.end(), [&](const JsonValue* value) {
        return same_value(*value, *one);
      });
      if (!known) values.push_back(one);
    }
  }
  return values;
}

// One place for each set of values that are used: 2^values of them.
NodeId SchemaGrammar::unique_array(NodeId from, const SchemaForm& form, const JsonValue& place) {
  constexpr size_t kMaxSets = 4096;
  const SchemaTerms terms = item_terms(form, 0);
  const bool uniform = std::all_of(form.arrays.begin(), form.arrays.end(),
                                   [](const auto& part) { return part.prefix.empty(); });
  const auto values = uniform ? finite_values(terms) : std::vector<const JsonValue*>();
  if (values.empty() || !form.contains.empty()) {
    forms_.refuse(
        place,
        "uniqueItems is supported where items are values of one enum: name them there, or "
        "leave uniqueItems out");
  }
  const auto most = static_cast<size_t>(
      std::min<int64_t>(form.max_items.value_or(INT64_MAX), std::ssize(values)));
  std::map<std::vector<bool>, NodeId> places;  // [value] used
  std::vector<std::vector<bool>> todo = {std::vector<bool>(values.size())};
  places[todo[0]] = separator(from, '[');
  const NodeId end = builder_.node();
  while (!todo.empty()) {
    const std::vector<bool> used = std::move(todo.back());
    todo.pop_back();
    const NodeId at = places.at(used);
    const auto count = static_cast<size_t>(std::count(used.begin(), used.end(), true));
    if (count >= static_cast<size_t>(form.min_items)) builder_.empty_edge(at, end);
    if (count == most) continue;
    const NodeId begin = count > 0 ? separator(at, ',') : at;
    for (size_t i = 0; i < values.size(); ++i) {
      if (used[i]) continue;
      std::vector<bool> next = used;
      next[i] = true;
      const auto [known, is_new] = places.try_emplace(next);
      if (is_new) {
        if (places.size() > kMaxSets) {
          forms_.refuse(place, fmt::format("uniqueItems over {} values has too many "
                                           "combinations: give maxItems, or at most 12 values",
                                           values.size()));
        }
        known->second = builder_.node();
        todo.push_back(next);
      }
      builder_.empty_edge(pieces_.spaces(literals(begin, {values[i]})), known->second);
    }
  }
  return builder_.literal(end, "]");
}

}  // namespace dsv4
