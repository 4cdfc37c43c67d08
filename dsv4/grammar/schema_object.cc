// Objects of a schema: the keys that it names in their order, then others by their patterns.

#include <algorithm>

#include "dsv4/grammar/schema_grammar.h"

namespace dsv4 {
namespace {

bool is_false(const SchemaTerms& terms) {
  return std::any_of(terms.begin(), terms.end(), [](const SchemaTerm& term) {
    return term.schema->is_bool() && term.schema->boolean == term.negated;
  });
}

}  // namespace

// Keys that the form does not name, and where they end, by which patterns they match.
std::map<std::vector<bool>, NodeId> SchemaGrammar::other_keys(NodeId from, const SchemaForm& form,
                                                              const JsonValue& place) {
  const std::vector<std::string> patterns = SchemaForms::patterns_of(form);
  if (patterns.empty() && form.names.empty()) return {{{}, pieces_.other_key(from, form.keys)}};
  std::vector<TextPart> parts;
  for (const std::string& pattern : patterns)
    parts.push_back(
        {forms_.at(place, [&] { return forms_.patterns().of(pattern); }), std::nullopt});
  parts.push_back({TextDfa::of_texts(form.keys), false});
  std::map<std::vector<bool>, NodeId> ends;
  const auto add = [&](const std::vector<TextPart>& all, int64_t min, std::optional<int64_t> max) {
    for (const auto& [in, last] : json_texts_.add(builder_.literal(from, "\""), all, min, max)) {
      const std::vector<bool> matched(in.begin(), in.begin() + std::ssize(patterns));
      const auto [end, is_new] = ends.try_emplace(matched);
      if (is_new) end->second = builder_.node();
      builder_.empty_edge(builder_.literal(last, "\""), end->second);
    }
  };
  if (form.names.empty()) {
    add(parts, 0, std::nullopt);
    return ends;
  }
  for (const SchemaForm& names : forms_.plain(forms_.of(form.names), place)) {
    std::vector<TextPart> all = parts;
    if (names.has_values) {
      std::vector<std::string> texts;
      for (const JsonValue* value : forms_.values_of(names))
        if (value->is_string()) texts.push_back(value->text);
      all.push_back({TextDfa::of_texts(texts), true});
    } else if ((names.types & SchemaForm::kString) == 0) {
      continue;
    }
    all.insert(all.end(), names.texts.begin(), names.texts.end());
    add(all, names.min_length, names.max_length);
  }
  return ends;
}

// Bounds of the number of members that hold anyway would cost a copy of the object for each number.
void SchemaGrammar::drop_idle_counts(SchemaForm& form) const {
  if (form.min_members <= std::ssize(form.required)) form.min_members = 0;
  const bool closed =
      SchemaForms::patterns_of(form).empty() && is_false(forms_.terms_of_other(form, {}, {}));
  if (closed && form.max_members && *form.max_members >= std::ssize(form.keys))
    form.max_members.reset();
}

NodeId SchemaGrammar::object(NodeId from, SchemaForm form, const JsonValue& place) {
  drop_idle_counts(form);
  if (form.some.size() > 1)
    forms_.refuse(place, "several schemas that additional members must not fit are not supported");
  const auto fits_names = [&](const std::string& key) {
    const JsonValue name = JsonValue::of_string(key);
    return std::all_of(form.names.begin(), form.names.end(), [&](const SchemaTerm& term) {
      return forms_.at(place, [&] { return forms_.fits(name, term); });
    });
  };
  // How many members there are counts up to here, and no further.
  const int64_t least = std::max<int64_t>(form.min_members, 0);
  const auto most = static_cast<size_t>(form.max_members.value_or(std::max<int64_t>(least, 1)));
  const size_t flags = form.some.empty() ? 1 : 2;
  // [flag * (most + 1) + members] the place behind so many members; flag: the wanted one was there.
  using Places = std::vector<NodeId>;
  const auto index = [&](size_t flag, size_t count) { return flag * (most + 1) + count; };
  Places at(flags * (most + 1), -1);
  at[0] = separator(from, '{');
  const auto after = [&](size_t count) {
    return form.max_members ? count + 1 : std::min(count + 1, most);
  };
  const auto node = [&](NodeId& place_of) {
    if (place_of < 0) place_of = builder_.node();
    return place_of;
  };
  const auto member_value = [&](NodeId key, const SchemaTerms& terms) {
    return pieces_.spaces(value_of(separator(pieces_.spaces(key), ':'), terms));
  };
  // A member of each place behind which there is room, from one node before its key.
  const auto keys_of = [&](const Places& places, size_t flag, size_t count, const auto& add) {
    const NodeId here = places[index(flag, count)];
    if (here < 0 || (form.max_members && count == most)) return;
    add(count > 0 ? separator(here, ',') : here);
  };
  // Tracks that meet behind a member share it.
  const auto for_tracks = [&](const Places& places, const auto& add) {
    for (size_t flag = 0; flag < flags; ++flag) {
      std::map<size_t, NodeId> begins;  // by the count behind the member
      for (size_t count = 0; count <= most; ++count) {
        keys_of(places, flag, count, [&](NodeId begin) {
          const auto [known, is_new] = begins.try_emplace(after(count));
          if (is_new) known->second = builder_.node();
          builder_.empty_edge(begin, known->second);
        });
      }
      for (const auto& [count, begin] : begins) add(flag, count, begin);
    }
  };
  for (const std::string& key : form.keys) {
    SchemaTerms terms = forms_.terms_of(form, key);
    const bool required = form.required.contains(key);
    const bool possible = !is_false(terms) && fits_names(key);
    if (!possible && !required) continue;
    Places next(at.size(), -1);
    if (possible) {
      for_tracks(at, [&](size_t flag, size_t count, NodeId begin) {
        const NodeId named = builder_.literal(begin, to_json(JsonValue::of_string(key)));
        const bool wanted = flag + 1 < flags && !forms_.names(form.some[0].part, key);
        builder_.empty_edge(member_value(named, terms), node(next[index(flag, count)]));
        if (!wanted) return;
        SchemaTerms mine = terms;
        mine.push_back(form.some[0].value);
        builder_.empty_edge(member_value(named, mine), node(next[index(1, count)]));
      });
    }
    if (!required) {
      for (size_t i = 0; i < at.size(); ++i)
        if (at[i] >= 0) builder_.empty_edge(at[i], node(next[i]));
    }
    at = std::move(next);
  }
  // Other keys: a loop over the same places.
  for (NodeId& one : at) {
    const NodeId loop = builder_.node();
    if (one >= 0) builder_.empty_edge(one, loop);
    one = loop;
  }
  const std::vector<std::string> patterns = SchemaForms::patterns_of(form);
  for_tracks(at, [&](size_t flag, size_t count, NodeId begin) {
    for (const auto& [matched, key] : other_keys(begin, form, place)) {
      SchemaTerms terms = forms_.terms_of_other(form, patterns, matched);
      if (is_false(terms)) continue;
      builder_.empty_edge(member_value(key, terms), at[index(flag, count)]);
      if (flag + 1 == flags) continue;
      terms.push_back(form.some[0].value);
      builder_.empty_edge(member_value(key, terms), at[index(1, count)]);
    }
  });
  const NodeId end = builder_.node();
  for (size_t count = static_cast<size_t>(least); count <= most; ++count)
    builder_.empty_edge(at[index(flags - 1, count)], end);
  return builder_.literal(end, "}");
}

}  // namespace dsv4
