// What a form says of the members of an object and of the values that a schema names.

#include <algorithm>

#include "dsv4/grammar/schema_form.h"

namespace dsv4 {

SchemaTerms SchemaForms::terms_of(const SchemaForm& form, const std::string& key) {
  SchemaTerms terms;
  for (const SchemaForm::ObjectPart& part : form.objects) {
    bool named = false;
    const auto add_members = [&](const JsonValue* map, const auto& is) {
      if (map == nullptr) return;
      for (const auto& [name, schema] : map->members) {
        if (!is(name)) continue;
        named = true;
        SchemaForm::add_once(terms, SchemaTerm{&schema});
      }
    };
    add_members(part.properties, [&](const std::string& name) { return name == key; });
    add_members(part.patterns, [&](const std::string& pattern) {
      return at(*part.patterns, [&] { return patterns_.of(pattern)->contains(key); });
    });
    if (!named && part.additional != nullptr)
      SchemaForm::add_once(terms, SchemaTerm{part.additional});
  }
  if (const auto extra = form.members.find(key); extra != form.members.end())
    for (const SchemaTerm& term : extra->second) SchemaForm::add_once(terms, term);
  return terms;
}

// (deny_object makes such parts from properties alone.)
bool SchemaForms::names(const SchemaForm::ObjectPart& part, const std::string& key) {
  if (part.properties == nullptr) return false;
  const auto& members = part.properties->members;
  return std::any_of(members.begin(), members.end(),
                     [&](const auto& member) { return member.first == key; });
}

std::vector<std::string> SchemaForms::patterns_of(const SchemaForm& form) {
  std::vector<std::string> patterns;
  for (const SchemaForm::ObjectPart& part : form.objects) {
    if (part.patterns == nullptr) continue;
    for (const auto& [pattern, schema] : part.patterns->members)
      SchemaForm::add_once(patterns, pattern);
  }
  return patterns;
}

SchemaTerms SchemaForms::terms_of_other(const SchemaForm& form,
                                        const std::vector<std::string>& patterns,
                                        const std::vector<bool>& matched) const {
  SchemaTerms terms;
  for (const SchemaForm::ObjectPart& part : form.objects) {
    bool named = false;
    if (part.patterns != nullptr) {
      for (const auto& [pattern, schema] : part.patterns->members) {
        const auto place = std::find(patterns.begin(), patterns.end(), pattern);
        if (!matched[static_cast<size_t>(place - patterns.begin())]) continue;
        named = true;
        SchemaForm::add_once(terms, SchemaTerm{&schema});
      }
    }
    if (!named && part.additional != nullptr)
      SchemaForm::add_once(terms, SchemaTerm{part.additional});
  }
  return terms;
}

std::vector<const JsonValue*> SchemaForms::values_of(const SchemaForm& form) {
  std::vector<const JsonValue*> found;
  for (const JsonValue* value : form.values) {
    const bool allowed =
        std::all_of(form.terms.begin(), form.terms.end(), [&](const SchemaTerm& term) {
          return at(*term.schema, [&] { return fits(*value, term); });
        });
    if (allowed) found.push_back(value);
  }
  return found;
}

}  // namespace dsv4
