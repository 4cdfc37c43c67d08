#include "dsv4/grammar/schema_form.h"

#include <algorithm>

#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/regex_grammar.h"
#include "dsv4/grammar/string_formats.h"

namespace dsv4 {
namespace {

constexpr int64_t kMaxRepeat = 10'000;
constexpr int kMaxPlain = 256, kMaxUnfolded = 4096;

const JsonValue& false_schema() {
  static const JsonValue value = JsonValue::of_bool(false);
  return value;
}

bool is_true(const JsonValue* value) {
  return value != nullptr && value->is_bool() && value->boolean;
}

unsigned types_named(std::string_view name) {
  constexpr std::pair<std::string_view, unsigned> kTypes[] = {
      {"null", SchemaForm::kNull},       {"boolean", SchemaForm::kBoolean},
      {"integer", SchemaForm::kInteger}, {"number", SchemaForm::kNumber},
      {"string", SchemaForm::kString},   {"array", SchemaForm::kArray},
      {"object", SchemaForm::kObject},   {"any", SchemaForm::kAny},
  };
  for (const auto& [type, mask] : kTypes)
    if (type == name) return mask;
  return 0;
}

}  // namespace

void SchemaForm::add_key(const std::string& key) {
  SchemaForm::add_once(keys, key);
}

void SchemaForm::require(const std::string& key) {
  add_key(key);
  required.insert(key);
  limit(kObject);
}

void SchemaForm::forbid(const std::string& key) {
  add_key(key);
  members[key].push_back({&false_schema()});
  limit(kObject);
}

void SchemaForm::raise(NumberBound bound) {
  limit(kNumber);
  const int order = low ? compare(bound.value, low->value) : 1;
  if (order > 0 || (order == 0 && bound.excluded)) low = std::move(bound);
}

void SchemaForm::lower(NumberBound bound) {
  limit(kNumber);
  const int order = high ? compare(bound.value, high->value) : -1;
  if (order < 0 || (order == 0 && bound.excluded)) high = std::move(bound);
}

SchemaForms::SchemaForms(const JsonValue& root, std::string param)
    : root_(root), param_(std::move(param)), index_(root), check_(index_, patterns_) {
}

void SchemaForms::refuse(const JsonValue& place, const std::string& what) const {
  const std::string pointer = index_.pointer_of(place);
  throw RequestError(
      "unsupported_schema", param_,
      fmt::format("{}: schema at {}: {}", param_, pointer.empty() ? "/" : pointer, what));
}

void SchemaForms::refuse_as(const JsonValue& place, const Error& error) const {
  const bool said = dynamic_cast<const RequestError*>(&error) != nullptr;
  if (said || error.code() != ErrorCode::kBadInput) throw;
  refuse(place, error.what());
}

SchemaForms::PathPointer SchemaForms::below(const PathPointer& path,
                                            const JsonValue& schema) const {
  for (const Path* at = path.get(); at != nullptr; at = at->above.get())
    if (at->schema == &schema)
      refuse(schema, "the schema refers to itself without anything in between");
  return std::make_shared<const Path>(Path{&schema, path});
}

const JsonValue& SchemaForms::target_of(const JsonValue& schema) const {
  const JsonValue& reference = *schema.find("$ref");
  if (!reference.is_string()) refuse(schema, "$ref must be a string");
  const JsonValue* target = index_.resolve(reference.text, schema);
  if (target == nullptr) {
    refuse(schema, fmt::format("$ref {} leads nowhere in this schema: copy what it means to $defs",
                               reference.text));
  }
  return *target;
}

SchemaForm SchemaForms::of(const SchemaTerms& terms) {
  SchemaForm form;
  for (const SchemaTerm& term : terms) add(form, term, nullptr);
  return form;
}

void SchemaForms::add(SchemaForm& form, SchemaTerm term, const PathPointer& path) {
  const JsonValue& schema = *term.schema;
  const PathPointer here = below(path, schema);
  if (form.dead() || std::find(form.terms.begin(), form.terms.end(), term) != form.terms.end())
    return;
  form.terms.push_back(term);
  if (term.negated) return deny(form, schema, here);
  if (schema.is_bool()) {
    if (!schema.boolean) form.types = 0;
    return;
  }
  if (!schema.is_object()) refuse(schema, "want an object, true or false");
  if (schema.find("$ref") != nullptr) {
    add(form, {&target_of(schema)}, here);
    if (index_.ref_stands_alone()) return;
  }
  add_keywords(form, schema, here);
}

void SchemaForms::add_keywords(SchemaForm& form, const JsonValue& schema, const PathPointer& path) {
  for (const char* keyword : {"$dynamicRef", "$recursiveRef", "unevaluatedProperties",
                              "unevaluatedItems", "minContains", "maxContains"}) {
    if (schema.find(keyword) != nullptr && !is_true(schema.find(keyword)))
      refuse(schema, fmt::format("'{}' is not supported: leave it out, or write out "
                                 "what may come",
                                 keyword));
  }
  add_type(form, schema);
  add_values(form, schema);
  if (form.dead()) return;
  add_number(form, schema);
  add_string(form, schema);
  add_array(form, schema);
  add_object(form, schema);
  if (const JsonValue* all = schema.find("allOf")) {
    if (!all->is_array()) refuse(schema, "allOf must be a list");
    for (const JsonValue& one : all->items) add(form, {&one}, path);
  }
  add_choices(form, schema, path);
}

void SchemaForms::add_type(SchemaForm& form, const JsonValue& schema) const {
  const JsonValue* type = schema.find("type");
  if (type == nullptr) return;
  unsigned mask = 0;
  if (is_true(schema.find("nullable"))) mask |= SchemaForm::kNull;
  const auto one = [&](const JsonValue& name) {
    const unsigned named = name.is_string() ? types_named(name.text) : 0;
    if (named == 0)
      refuse(schema, fmt::format("type must be one of null, boolean, integer, number, string, "
                                 "array and object, or a list of these, not {}",
                                 to_json(name)));
    mask |= named;
  };
  if (!type->is_array()) one(*type);
  for (const JsonValue& name : type->items) one(name);
  form.only(mask);
}

void SchemaForms::add_values(SchemaForm& form, const JsonValue& schema) const {
  const auto only = [&](const std::vector<const JsonValue*>& values) {
    if (!form.has_values) form.values = values;
    form.has_values = true;
    std::erase_if(form.values, [&](const JsonValue* known) {
      return std::none_of(values.begin(), values.end(),
                          [&](const JsonValue* one) { return same_value(*known, *one); });
    });
    if (form.values.empty()) form.types = 0;
  };
  if (const JsonValue* values = schema.find("enum")) {
    if (!values->is_array() || values->items.empty())
      refuse(schema, "enum must be a list of values");
    std::vector<const JsonValue*> list;
    for (const JsonValue& value : values->items) list.push_back(&value);
    only(list);
  }
  for (const auto& [key, value] : schema.members)
    if (key == "const") only({&value});
}

NumberBound SchemaForms::bound(const JsonValue& schema, const char* key) const {
  const auto value = Decimal::of(*schema.find(key));
  if (!value)
    refuse(schema,
           fmt::format("{} must be a number of at most {} digits", key, Decimal::kMaxDigits));
  return {*value, std::string_view(key).starts_with("exclusive")};
}

void SchemaForms::add_number(SchemaForm& form, const JsonValue& schema) const {
  for (const auto& [key, excluded, is_low] : {std::tuple("minimum", "exclusiveMinimum", true),
                                              std::tuple("maximum", "exclusiveMaximum", false)}) {
    const JsonValue* flag = schema.find(excluded);  // true beside the bound: draft 4
    if (schema.find(key) != nullptr) {
      NumberBound one = bound(schema, key);
      one.excluded = is_true(flag);
      is_low ? form.raise(std::move(one)) : form.lower(std::move(one));
    }
    if (flag == nullptr || flag->is_bool()) continue;
    is_low ? form.raise(bound(schema, excluded)) : form.lower(bound(schema, excluded));
  }
  if (schema.find("multipleOf") == nullptr) return;
  const Decimal divisor = bound(schema, "multipleOf").value;
  if (divisor.negative || !is_multiple(divisor, divisor))
    refuse(schema, "multipleOf must be above 0 and have at most 9 digits");
  SchemaForm::add_once(form.multiples, divisor);
  form.limit(SchemaForm::kNumber);
}

std::optional<int64_t> SchemaForms::count(const JsonValue& schema, const char* key) const {
  const JsonValue* value = schema.find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = Decimal::of(*value);
  if (!number || number->negative || !number->fraction.empty())
    refuse(schema, fmt::format("{} must be a whole number from 0", key));
  // More than a text may have is as good as any larger number.
  const bool most = std::string_view(key).starts_with("max");
  if (number->whole.size() <= 5 && std::stoll(number->whole) <= kMaxRepeat)
    return std::stoll(number->whole);
  if (!most) refuse(schema, fmt::format("{} must be at most {}", key, kMaxRepeat));
  return kMaxRepeat;
}

void SchemaForms::add_string(SchemaForm& form, const JsonValue& schema) {
  const auto min = count(schema, "minLength"), max = count(schema, "maxLength");
  if (min) form.min_length = std::max(form.min_length, *min);
  if (max) form.max_length = std::min(form.max_length.value_or(*max), *max);
  if (min || max) form.limit(SchemaForm::kString);
  if (const JsonValue* pattern = schema.find("pattern")) {
    if (!pattern->is_string()) refuse(schema, "pattern must be a string");
    form.texts.push_back({at(schema, [&] { return patterns_.of(pattern->text); }), true});
    form.limit(SchemaForm::kString);
  }
  const JsonValue* format = schema.find("format");
  if (format == nullptr || !format->is_string()) return;
  const std::string_view regex = string_format(format->text);
  if (regex.empty()) return;  // an annotation
  form.limit(SchemaForm::kString);
  form.texts.push_back({patterns_.of("^(?:" + std::string(regex) + ")$"), true});
}

void SchemaForms::add_array(SchemaForm& form, const JsonValue& schema) const {
  const JsonValue* items = schema.find("items");
  const JsonValue* prefix = schema.find("prefixItems");
  if (items != nullptr && items->is_array()) {  // draft 7
    prefix = items;
    items = schema.find("additionalItems");
  }
  SchemaForm::ArrayPart part;
  if (prefix != nullptr) {
    if (!prefix->is_array()) refuse(schema, "prefixItems must be a list");
    for (const JsonValue& one : prefix->items) part.prefix.push_back(&one);
  }
  if (items != nullptr) part.rest.push_back({items});
  const auto min = count(schema, "minItems"), max = count(schema, "maxItems");
  if (min) form.min_items = std::max(form.min_items, *min);
  if (max) form.max_items = std::min(form.max_items.value_or(*max), *max);
  const JsonValue* unique = schema.find("uniqueItems");
  form.unique = form.unique || is_true(unique);
  const JsonValue* contains = schema.find("contains");
  if (contains != nullptr) form.contains.push_back({contains});
  const bool has_part = prefix != nullptr || items != nullptr;
  if (has_part) form.arrays.push_back(std::move(part));
  if (has_part || min || max || is_true(unique) || contains != nullptr)
    form.limit(SchemaForm::kArray);
}

void SchemaForms::add_object(SchemaForm& form, const JsonValue& schema) const {
  SchemaForm::ObjectPart part{.properties = schema.find("properties"),
                              .patterns = schema.find("patternProperties"),
                              .additional = schema.find("additionalProperties")};
  for (const JsonValue* map : {part.properties, part.patterns})
    if (map != nullptr && !map->is_object())
      refuse(schema, "properties and patternProperties must be objects");
  if (part.properties != nullptr)
    for (const auto& [key, value] : part.properties->members) form.add_key(key);
  if (part.properties != nullptr || part.patterns != nullptr || part.additional != nullptr) {
    form.objects.push_back(part);
    form.limit(SchemaForm::kObject);
  }
  if (const JsonValue* required = schema.find("required");
      required != nullptr && !required->is_bool()) {
    if (!required->is_array()) refuse(schema, "required must be a list of strings");
    for (const JsonValue& name : required->items) {
      if (!name.is_string()) refuse(schema, "required must be a list of strings");
      form.require(name.text);
    }
  }
  const auto min = count(schema, "minProperties"), max = count(schema, "maxProperties");
  if (min) form.min_members = std::max(form.min_members, *min);
  if (max) form.max_members = std::min(form.max_members.value_or(*max), *max);
  const JsonValue* names = schema.find("propertyNames");
  if (names != nullptr) form.names.push_back({names});
  if (min || max || names != nullptr) form.limit(SchemaForm::kObject);
}

void SchemaForms::add_choices(SchemaForm& form, const JsonValue& schema, const PathPointer& path) {
  if (choices_off_) return;
  const auto list_of = [&](const char* keyword) {
    const JsonValue* list = schema.find(keyword);
    if (list != nullptr && (!list->is_array() || list->items.empty()))
      refuse(schema, fmt::format("{} must be a list", keyword));
    return list;
  };
  if (const JsonValue* any = list_of("anyOf")) {
    SchemaForm::Choices choices;
    for (const JsonValue& one : any->items) {
      choices.all.emplace_back([this, &one, path](SchemaForm& f) { add(f, {&one}, path); });
      choices.plain.push_back({&one});
    }
    form.choices.push_back(std::move(choices));
  }
  if (const JsonValue* one = list_of("oneOf")) add_one_of(form, *one, path);
  if (const JsonValue* no = schema.find("not")) add(form, {no, true}, path);
  if (const JsonValue* condition = schema.find("if")) {
    const JsonValue *yes = schema.find("then"), *no = schema.find("else");
    const auto branch = [this, condition, path](bool negated, const JsonValue* then) {
      return [=, this](SchemaForm& f) {
        add(f, {condition, negated}, path);
        if (then != nullptr) add(f, {then}, path);
      };
    };
    if (yes != nullptr || no != nullptr)
      form.choices.push_back({.all = {branch(false, yes), branch(true, no)}, .plain = {}});
  }
  add_dependencies(form, schema, path);
}

// One choice for each schema of the list, without what also fits another one.
void SchemaForms::add_one_of(SchemaForm& form, const JsonValue& list, const PathPointer& path) {
  SchemaForm::Choices choices;
  bool apart = true;
  for (const JsonValue& one : list.items) {
    SchemaTerms others;
    for (const JsonValue& other : list.items)
      if (&other != &one && !surely_apart(one, other, 0)) others.push_back({&other, true});
    apart = apart && others.empty();
    choices.plain.push_back({&one});
    choices.all.emplace_back([this, &one, others, path](SchemaForm& f) {
      add(f, {&one}, path);
      for (const SchemaTerm& other : others) add(f, other, path);
    });
  }
  if (!apart) choices.plain.clear();
  form.choices.push_back(std::move(choices));
}

void SchemaForms::add_dependencies(SchemaForm& form, const JsonValue& schema,
                                   const PathPointer& path) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const JsonValue* all = schema.find(keyword);
    if (all == nullptr) continue;
    if (!all->is_object()) refuse(schema, fmt::format("{} must be an object", keyword));
    for (const auto& [key, needs] : all->members) {
      const auto without = [&key = key](SchemaForm& f) { f.forbid(key); };
      const auto with = [this, &key = key, &needs = needs, path](SchemaForm& f) {
        f.only(SchemaForm::kObject);
        f.require(key);
        if (!needs.is_array()) return add(f, {&needs}, path);
        for (const JsonValue& name : needs.items) f.require(name.text);
      };
      form.choices.push_back({.all = {without, with}, .plain = {}});
    }
  }
}

const SchemaForm& SchemaForms::without_choices(const JsonValue& schema) {
  if (const auto known = without_choices_.find(&schema); known != without_choices_.end())
    return known->second;
  const bool before = std::exchange(choices_off_, true);
  SchemaForm form = of({{&schema}});
  choices_off_ = before;
  return without_choices_.emplace(&schema, std::move(form)).first->second;
}

// Whether no value fits both, as far as types, values and required members show.
bool SchemaForms::surely_apart(const JsonValue& a, const JsonValue& b, int depth) {
  constexpr int kMaxDepth = 4;
  if (depth > kMaxDepth) return false;
  const SchemaForm &x = without_choices(a), &y = without_choices(b);
  if ((x.types & y.types) == 0) return true;
  for (const auto& [one, other] : {std::pair(&x, &y), std::pair(&y, &x)}) {
    if (!one->has_values) continue;
    const auto values = values_of(*one);
    const auto& terms = other->terms;
    if (std::none_of(values.begin(), values.end(), [&](const JsonValue* value) {
          return std::all_of(terms.begin(), terms.end(),
                             [&](const SchemaTerm& term) { return fits(*value, term); });
        }))
      return true;
  }
  if ((x.types & y.types) != SchemaForm::kObject) return false;
  for (const auto& [one, other] : {std::pair(&x, &y), std::pair(&y, &x)}) {
    for (const std::string& key : one->required) {
      const SchemaTerms mine = terms_of(*one, key), theirs = terms_of(*other, key);
      for (const SchemaTerm& left : mine) {
        for (const SchemaTerm& right : theirs)
          if (!left.negated && !right.negated &&
              surely_apart(*left.schema, *right.schema, depth + 1))
            return true;
      }
      for (const SchemaTerm& right : theirs)
        if (!right.negated && without_choices(*right.schema).dead()) return true;
    }
  }
  return false;
}

std::vector<SchemaForm> SchemaForms::plain(SchemaForm form, const JsonValue& place) {
  std::vector<SchemaForm> out;
  unfolded_ = 0;
  unfold(std::move(form), place, out);
  return out;
}

void SchemaForms::unfold(SchemaForm form, const JsonValue& place, std::vector<SchemaForm>& out) {
  if (form.dead()) return;
  for (const std::string& key : form.required) {
    for (const SchemaTerm& term : terms_of(form, key))
      if (term.schema->is_bool() && term.schema->boolean == term.negated)
        form.only(SchemaForm::kAny & ~SchemaForm::kObject);
  }
  // Values are checked under the whole schemas, whatever is chosen.
  if (form.choices.empty() || form.has_values || form.dead()) {
    if (!form.dead()) out.push_back(std::move(form));
    return;
  }
  if (++unfolded_ > kMaxUnfolded || out.size() > kMaxPlain) {
    refuse(place,
           "anyOf, oneOf, if, not and dependencies have too many combinations here: write out "
           "the cases that are meant");
  }
  const SchemaForm::Choices choices = std::move(form.choices.front());
  form.choices.erase(form.choices.begin());
  for (size_t i = 0; i < choices.all.size(); ++i) {
    SchemaForm one = form;
    choices.all[i](one);
    unfold(std::move(one), place, out);
  }
}

}  // namespace dsv4
