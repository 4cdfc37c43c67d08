// What it takes that a schema does not hold: each of its keywords is one way, and the ways are
// choices of the form.

#include <algorithm>

#include "dsv4/grammar/schema_form.h"

namespace dsv4 {
namespace {

using Form = SchemaForm;

bool is_whole(const Decimal& value) {
  return value.fraction.empty();
}

}  // namespace

void SchemaForms::deny(SchemaForm& form, const JsonValue& schema, const PathPointer& path) {
  if (schema.is_bool()) {
    if (schema.boolean) form.types = 0;
    return;
  }
  if (!schema.is_object()) refuse(schema, "want an object, true or false");
  for (const char* keyword :
       {"$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems", "minContains",
        "maxContains", "propertyNames", "patternProperties", "multipleOf", "uniqueItems"}) {
    if (schema.find(keyword) != nullptr)
      refuse(schema, fmt::format("'{}' is not supported inside not, if and oneOf whose schemas "
                                 "overlap: write out what may come",
                                 keyword));
  }
  std::vector<Choice> ways;
  const bool alone = schema.find("$ref") != nullptr && index_.ref_stands_alone();
  if (schema.find("$ref") != nullptr) {
    ways.emplace_back([this, &target = target_of(schema), path](Form& f) {
      add(f, {&target, true}, path);
    });
  }
  if (!alone) {
    if (schema.find("type") != nullptr) {
      Form typed;
      add_type(typed, schema);
      ways.emplace_back([mask = typed.types](Form& f) { f.only(Form::kAny & ~mask); });
    }
    deny_values(ways, schema);
    deny_number(ways, schema);
    deny_string(ways, schema);
    deny_array(ways, schema, path);
    deny_object(ways, schema);
    deny_parts(ways, schema, path);
  }
  if (ways.empty()) {  // everything fits the schema
    form.types = 0;
  } else if (ways.size() == 1) {
    ways.front()(form);
  } else {
    form.choices.push_back({.all = std::move(ways), .plain = {}});
  }
}

void SchemaForms::exclude(SchemaForm& form, const JsonValue& value, const JsonValue& place) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return form.only(Form::kAny & ~Form::kNull);
    case JsonValue::Kind::kBool:
      return form.only(Form::kAny & ~(value.boolean ? Form::kTrue : Form::kFalse));
    case JsonValue::Kind::kString:
      form.texts.push_back({TextDfa::of_texts({value.text}), false});
      return form.limit(Form::kString);
    case JsonValue::Kind::kInteger:
    case JsonValue::Kind::kDouble: {
      const auto number = Decimal::of(value);
      const unsigned type = number && is_whole(*number) ? Form::kInteger : Form::kFraction;
      if ((form.types & type) == 0) return;
      if (!number) refuse(place, "a number with too many digits in not");
      const auto other = [](Form& f) { f.only(Form::kAny & ~Form::kNumber); };
      const auto above = [number](Form& f) { f.only(Form::kNumber), f.raise({*number, true}); };
      const auto below = [number](Form& f) { f.only(Form::kNumber), f.lower({*number, true}); };
      form.choices.push_back({.all = {other, above, below}, .plain = {}});
      return;
    }
    case JsonValue::Kind::kArray:
      if ((form.types & Form::kArray) == 0) return;
      if (!value.items.empty()) refuse(place, "an array in not is not supported");
      form.min_items = std::max<int64_t>(form.min_items, 1);
      return form.limit(Form::kArray);
    case JsonValue::Kind::kObject:
      if ((form.types & Form::kObject) == 0) return;
      if (!value.members.empty()) refuse(place, "an object in not is not supported");
      form.min_members = std::max<int64_t>(form.min_members, 1);
      return form.limit(Form::kObject);
  }
}

void SchemaForms::deny_values(std::vector<Choice>& ways, const JsonValue& schema) {
  const auto none_of = [&](std::vector<const JsonValue*> values) {
    ways.emplace_back([this, values = std::move(values), &schema](Form& f) {
      std::vector<std::string> texts;
      for (const JsonValue* value : values) {
        if (value->is_string()) {
          texts.push_back(value->text);
        } else {
          exclude(f, *value, schema);
        }
      }
      if (texts.empty()) return;
      f.texts.push_back({TextDfa::of_texts(texts), false});
      f.limit(Form::kString);
    });
  };
  if (const JsonValue* values = schema.find("enum")) {
    std::vector<const JsonValue*> list;
    for (const JsonValue& value : values->items) list.push_back(&value);
    none_of(std::move(list));
  }
  for (const auto& [key, value] : schema.members)
    if (key == "const") none_of({&value});
}

void SchemaForms::deny_number(std::vector<Choice>& ways, const JsonValue& schema) {
  Form limits;
  add_number(limits, schema);
  if (limits.low) {
    ways.emplace_back([bound = *limits.low](Form& f) {
      f.only(Form::kNumber);
      f.lower({bound.value, !bound.excluded});
    });
  }
  if (limits.high) {
    ways.emplace_back([bound = *limits.high](Form& f) {
      f.only(Form::kNumber);
      f.raise({bound.value, !bound.excluded});
    });
  }
}

void SchemaForms::deny_string(std::vector<Choice>& ways, const JsonValue& schema) {
  const auto way = [&](const auto& limit) {
    ways.emplace_back([limit](Form& f) {
      f.only(Form::kString);
      f.limit(Form::kString);
      if (!f.dead()) limit(f);
    });
  };
  const auto min = count(schema, "minLength"), max = count(schema, "maxLength");
  if (min && *min > 0)
    way([most = *min - 1](Form& f) { f.max_length = std::min(f.max_length.value_or(most), most); });
  if (max) way([least = *max + 1](Form& f) { f.min_length = std::max(f.min_length, least); });
  if (const JsonValue* pattern = schema.find("pattern");
      pattern != nullptr && pattern->is_string()) {
    way([this, pattern, &schema](Form& f) {
      f.texts.push_back({at(schema, [&] { return patterns_.of(pattern->text); }), false});
    });
  }
}

void SchemaForms::deny_array(std::vector<Choice>& ways, const JsonValue& schema,
                             const PathPointer&) {
  const auto way = [&](const auto& limit) {
    ways.emplace_back([limit](Form& f) {
      f.only(Form::kArray);
      f.limit(Form::kArray);
      if (!f.dead()) limit(f);
    });
  };
  const auto min = count(schema, "minItems"), max = count(schema, "maxItems");
  if (min && *min > 0)
    way([most = *min - 1](Form& f) { f.max_items = std::min(f.max_items.value_or(most), most); });
  if (max) way([least = *max + 1](Form& f) { f.min_items = std::max(f.min_items, least); });
  const JsonValue* items = schema.find("items");
  if (schema.find("prefixItems") != nullptr || (items != nullptr && items->is_array())) {
    way([this, &schema](Form&) {
      refuse(schema,
             "lists of items by place are not supported inside not, if and oneOf whose "
             "schemas overlap");
    });
  } else if (items != nullptr) {
    way([items](Form& f) { f.contains.push_back({items, true}); });
  }
  if (const JsonValue* contains = schema.find("contains")) {
    way([contains](Form& f) {
      f.arrays.push_back({.prefix = {}, .rest = {SchemaTerm{contains, true}}});
    });
  }
}

void SchemaForms::deny_object(std::vector<Choice>& ways, const JsonValue& schema) {
  const auto way = [&](const auto& limit) {
    ways.emplace_back([limit](Form& f) {
      f.only(Form::kObject);
      f.limit(Form::kObject);
      if (!f.dead()) limit(f);
    });
  };
  const JsonValue* properties = schema.find("properties");
  const JsonValue* additional = schema.find("additionalProperties");
  if (const JsonValue* required = schema.find("required"); required != nullptr) {
    for (const JsonValue& name : required->items) way([&name](Form& f) { f.forbid(name.text); });
  }
  if (properties != nullptr) {
    for (const auto& [key, value] : properties->members) {
      if (value.is_bool() && value.boolean) continue;
      way([&key = key, &value = value](Form& f) {
        f.require(key);
        f.members[key].push_back({&value, true});
      });
    }
  }
  if (additional != nullptr && !(additional->is_bool() && additional->boolean)) {
    way([properties, additional](Form& f) {
      f.some.push_back({{.properties = properties, .patterns = nullptr, .additional = additional},
                        {additional, true}});
    });
  }
  const auto min = count(schema, "minProperties"), max = count(schema, "maxProperties");
  if (min && *min > 0) {
    way([most = *min - 1](Form& f) {
      f.max_members = std::min(f.max_members.value_or(most), most);
    });
  }
  if (max) way([least = *max + 1](Form& f) { f.min_members = std::max(f.min_members, least); });
}

void SchemaForms::deny_parts(std::vector<Choice>& ways, const JsonValue& schema,
                             const PathPointer& path) {
  const auto terms = [&](SchemaTerms all) {
    ways.emplace_back([this, all = std::move(all), path](Form& f) {
      for (const SchemaTerm& term : all) add(f, term, path);
    });
  };
  const auto none_of = [&](const JsonValue& list) {
    SchemaTerms all;
    for (const JsonValue& one : list.items) all.push_back({&one, true});
    return all;
  };
  if (const JsonValue* all = schema.find("allOf"))
    for (const JsonValue& one : all->items) terms({{&one, true}});
  if (const JsonValue* any = schema.find("anyOf")) terms(none_of(*any));
  if (const JsonValue* one = schema.find("oneOf")) {
    terms(none_of(*one));
    for (size_t i = 0; i < one->items.size(); ++i)
      for (size_t j = 0; j < i; ++j) terms({{&one->items[i]}, {&one->items[j]}});
  }
  if (const JsonValue* no = schema.find("not")) terms({{no}});
  if (const JsonValue* condition = schema.find("if")) {
    if (const JsonValue* yes = schema.find("then")) terms({{condition}, {yes, true}});
    if (const JsonValue* no = schema.find("else")) terms({{condition, true}, {no, true}});
  }
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const JsonValue* all = schema.find(keyword);
    if (all == nullptr) continue;
    for (const auto& [key, needs] : all->members) {
      const auto with = [&key = key](Form& f) {
        f.only(Form::kObject);
        f.require(key);
      };
      for (const JsonValue& name : needs.items)
        ways.emplace_back([with, &name](Form& f) { with(f), f.forbid(name.text); });
      if (needs.is_array()) continue;
      ways.emplace_back([this, with, &needs = needs, path](Form& f) {
        with(f), add(f, {&needs, true}, path);
      });
    }
  }
}

}  // namespace dsv4
