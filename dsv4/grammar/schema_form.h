// What a list of schemas, all of which must hold, says of a value of each type: $ref and allOf are
// followed, keywords of the same kind become one limit, and anyOf, oneOf, if, not and dependencies
// become choices. A form whose choices are made is plain: the grammar of a value is the union of
// the plain forms.
//
//   S and (A or B) = (S and A) or (S and B)        not (A and B) = not A or not B
//
// Unknown keywords are annotations. What asserts and is not supported throws RequestError
// `unsupported_schema` with the place and a way out.

#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/grammar/number_text.h"
#include "dsv4/grammar/schema_check.h"

namespace dsv4 {

// A schema that must hold, or must not.
struct SchemaTerm {
  const JsonValue* schema;
  bool negated = false;
  friend auto operator<=>(const SchemaTerm&, const SchemaTerm&) = default;
};
using SchemaTerms = std::vector<SchemaTerm>;

struct SchemaForm {
  enum Type : unsigned {
    kNull = 1,
    kFalse = 2,
    kTrue = 4,
    kInteger = 8,
    kFraction = 16,  // numbers with a fraction
    kString = 32,
    kArray = 64,
    kObject = 128,
    kNumber = kInteger | kFraction,
    kBoolean = kFalse | kTrue,
    kAny = 255,
  };
  using Choice = std::function<void(SchemaForm&)>;
  struct Choices {
    std::vector<Choice> all;
    SchemaTerms plain;  // the same as terms, where all are
  };
  struct ArrayPart {
    std::vector<const JsonValue*> prefix;
    SchemaTerms rest;
  };
  struct ObjectPart {
    const JsonValue* properties = nullptr;
    const JsonValue* patterns = nullptr;
    const JsonValue* additional = nullptr;
  };
  // At least one member that `part` calls additional has a value under `value`.
  struct SomeMember {
    ObjectPart part;
    SchemaTerm value;
  };

  SchemaTerms terms;  // all that were added, for checking values
  unsigned types = kAny;
  unsigned limited = 0;  // the types that something else says something about
  bool has_values = false;
  std::vector<const JsonValue*> values;  // of enum or const
  std::vector<Choices> choices;

  std::optional<NumberBound> low, high;
  std::vector<Decimal> multiples;

  int64_t min_length = 0;
  std::optional<int64_t> max_length;
  std::vector<TextPart> texts;

  std::vector<ArrayPart> arrays;
  std::vector<SchemaTerm> contains;
  int64_t min_items = 0;
  std::optional<int64_t> max_items;
  bool unique = false;

  std::vector<ObjectPart> objects;
  std::vector<std::string> keys;  // that are named anywhere, in order
  std::set<std::string> required;
  std::map<std::string, SchemaTerms> members;  // beyond what `objects` say
  std::vector<SomeMember> some;
  SchemaTerms names;
  int64_t min_members = 0;
  std::optional<int64_t> max_members;

  template <class Value, class Item>
  static void add_once(std::vector<Value>& list, const Item& item) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
  }
  bool dead() const { return types == 0; }
  // Nothing is said of a value but in `choices`.
  bool is_free() const { return types == kAny && limited == 0 && !has_values; }
  void only(unsigned mask) { types &= mask; }
  void limit(unsigned mask) { limited |= mask; }
  void add_key(const std::string& key);
  void require(const std::string& key);
  void forbid(const std::string& key);
  void raise(NumberBound bound);  // the lower bound
  void lower(NumberBound bound);  // the upper bound
};

class SchemaForms {
 public:
  // `root` must outlive this. `param` names the field that the schema came in.
  SchemaForms(const JsonValue& root, std::string param);

  // The form of schemas that must all hold, with its choices.
  SchemaForm of(const SchemaTerms& terms);
  // The plain forms that it stands for.
  std::vector<SchemaForm> plain(SchemaForm form, const JsonValue& place);
  // The members that a key has to be, by what the form says of it.
  SchemaTerms terms_of(const SchemaForm& form, const std::string& key);
  // Members of a key that no part names; `matched` says which of patterns() it matches.
  SchemaTerms terms_of_other(const SchemaForm& form, const std::vector<std::string>& patterns,
                             const std::vector<bool>& matched) const;
  static std::vector<std::string> patterns_of(const SchemaForm& form);
  // The values of a form that has values, as far as everything else allows them.
  std::vector<const JsonValue*> values_of(const SchemaForm& form);

  bool fits(const JsonValue& value, const SchemaTerm& term) {
    return check_.valid(value, *term.schema) != term.negated;
  }
  // Whether a part names the key, so that it is not an additional one.
  static bool names(const SchemaForm::ObjectPart& part, const std::string& key);

  SchemaPatterns& patterns() { return patterns_; }
  [[noreturn]] void refuse(const JsonValue& place, const std::string& what) const;
  // `what` that throws kBadInput says so of this place.
  template <class What>
  auto at(const JsonValue& place, const What& what) const {
    try {
      return what();
    } catch (const Error& error) {
      refuse_as(place, error);
    }
  }

 private:
  // The schemas that are open around one, to notice a schema that refers to itself.
  struct Path {
    const JsonValue* schema;
    std::shared_ptr<const Path> above;
  };
  using PathPointer = std::shared_ptr<const Path>;
  using Choice = SchemaForm::Choice;

  [[noreturn]] void refuse_as(const JsonValue& place, const Error& error) const;
  PathPointer below(const PathPointer& path, const JsonValue& schema) const;
  const JsonValue& target_of(const JsonValue& schema) const;

  void add(SchemaForm& form, SchemaTerm term, const PathPointer& path);
  void add_keywords(SchemaForm& form, const JsonValue& schema, const PathPointer& path);
  void add_type(SchemaForm& form, const JsonValue& schema) const;
  void add_values(SchemaForm& form, const JsonValue& schema) const;
  void add_number(SchemaForm& form, const JsonValue& schema) const;
  void add_string(SchemaForm& form, const JsonValue& schema);
  void add_array(SchemaForm& form, const JsonValue& schema) const;
  void add_object(SchemaForm& form, const JsonValue& schema) const;
  void add_choices(SchemaForm& form, const JsonValue& schema, const PathPointer& path);
  void add_one_of(SchemaForm& form, const JsonValue& list, const PathPointer& path);
  void add_dependencies(SchemaForm& form, const JsonValue& schema, const PathPointer& path);
  bool surely_apart(const JsonValue& a, const JsonValue& b, int depth);
  const SchemaForm& without_choices(const JsonValue& schema);

  // Negation, in schema_negation.cc: one choice for each way in which a schema does not hold.
  void deny(SchemaForm& form, const JsonValue& schema, const PathPointer& path);
  void deny_values(std::vector<Choice>& ways, const JsonValue& schema);
  void deny_number(std::vector<Choice>& ways, const JsonValue& schema);
  void deny_string(std::vector<Choice>& ways, const JsonValue& schema);
  void deny_array(std::vector<Choice>& ways, const JsonValue& schema, const PathPointer& path);
  void deny_object(std::vector<Choice>& ways, const JsonValue& schema);
  void deny_parts(std::vector<Choice>& ways, const JsonValue& schema, const PathPointer& path);
  void exclude(SchemaForm& form, const JsonValue& value, const JsonValue& place);

  void unfold(SchemaForm form, const JsonValue& place, std::vector<SchemaForm>& out);
  std::optional<int64_t> count(const JsonValue& schema, const char* key) const;
  NumberBound bound(const JsonValue& schema, const char* key) const;

  const JsonValue& root_;
  const std::string param_;
  SchemaIndex index_;
  SchemaPatterns patterns_;
  SchemaCheck check_;
  int unfolded_ = 0;
  bool choices_off_ = false;
  std::unordered_map<const JsonValue*, SchemaForm> without_choices_;
};

}  // namespace dsv4
