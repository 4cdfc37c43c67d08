// Parses needle.json and holds the built-in template (needle.h).

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/quality/needle.h"

namespace dsv4 {
namespace {

using nlohmann::json;

constexpr int64_t kMaxDistractors = 1000;

class Reader {
 public:
  explicit Reader(std::string what) : what_(std::move(what)) {}

  [[noreturn]] void reject(std::string_view key, std::string_view want) const {
    fail(ErrorCode::kBadInput, "{}: {} must be {}", what_, key, want);
  }
  // Rejects unknown keys too: a misspelled one would be ignored silently.
  void check_keys(const json& object, std::initializer_list<std::string_view> known) const {
    if (!object.is_object()) reject("every fact", "an object");
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        fail(ErrorCode::kBadInput, "{}: unknown key; the keys are {}", what_,
             fmt::join(known, ", "));
    }
  }
  std::vector<std::string> words(const json& object, const char* key) const {
    const auto it = object.find(key);
    const auto is_word = [](const json& word) {
      return word.is_string() && !word.get_ref<const std::string&>().empty();
    };
    if (it == object.end() || !it->is_array() || it->empty() ||
        !std::all_of(it->begin(), it->end(), is_word))
      reject(key, "a list of non-empty strings");
    return it->get<std::vector<std::string>>();
  }
  std::string text(const json& object, const char* key,
                   std::initializer_list<std::string_view> holds) const {
    const auto it = object.find(key);
    if (it == object.end() || !it->is_string()) reject(key, "a string");
    std::string value = it->get<std::string>();
    for (const std::string_view part : holds) {
      if (value.find(part) == std::string::npos) reject(key, fmt::format("a string with {}", part));
    }
    return value;
  }
  NeedleFacts facts(const json& object) const {
    check_keys(object, {"fact", "question", "answer", "keys", "values"});
    return {.fact = text(object, "fact", {"{key}", "{value}"}),
            .question = text(object, "question", {"{key}"}),
            .answer = text(object, "answer", {"{value}"}),
            .keys = words(object, "keys"),
            .values = words(object, "values")};
  }

 private:
  std::string what_;
};

const char* const kFiller[] = {
    "The bakery on the corner opens at six, and by seven the good loaves are gone.\n",
    "Rain is expected in the north, while the south stays dry until the weekend.\n",
    "A new bridge will connect the two halves of the town before the end of the year.\n",
    "The library has moved its maps to the second floor, next to the reading room.\n",
    "Most of the orchard was planted by hand over the course of a single spring.\n",
    "The train to the coast leaves every hour and takes a little less than two.\n",
    "An engineer checked the old turbines and found that only one needed repair.\n",
    "The museum shows glass from four centuries, most of it made within a day's walk.\n",
    "Farmers in the valley rotate wheat, clover and beans to keep the soil rich.\n",
    "The choir practises on Tuesdays, and visitors may listen from the gallery.\n",
    "Two hikers reported that the upper path is blocked by a fallen tree.\n",
    "The ferry was painted green last winter because the white paint kept peeling.\n",
    "Copper pipes are easy to bend when warm and hard to keep bright when cold.\n",
    "The school replaced its lamps and now uses a third of the power it used before.\n",
    "A carpenter explained that oak moves with the seasons and must be given room.\n",
    "The market sells fish in the morning, flowers at noon and books in the evening.\n",
    "Old letters found in the attic describe the harvest of a very dry summer.\n",
    "The observatory counts meteors every August and publishes the list in autumn.\n",
    "A small fire in the workshop was put out before anyone was hurt.\n",
    "The river freezes only in the coldest years, and then the mills stand still.\n",
};

NeedleTemplate plain_english() {
  NeedleFacts facts{.fact = "The secret number of {key} is {value}.\n",
                    .question =
                        "Question: What is the secret number of {key}?\n"
                        "Answer: The secret number of {key} is",
                    .answer = " {value}",
                    .keys = {"Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta",
                             "Hugo", "Irene", "Jonas", "Karla", "Louis", "Marta", "Nils",
                             "Olga", "Peter", "Rosa",  "Simon", "Tanja", "Victor"}};
  for (int number = 1009; number < 10000; number += 37)
    facts.values.push_back(std::to_string(number));
  return {.facts = {facts}, .filler = {std::begin(kFiller), std::end(kFiller)}, .distractors = 4};
}

}  // namespace

NeedleTemplate parse_needle_template(std::string_view text, const std::string& what) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) fail(ErrorCode::kBadInput, "{}: not a JSON object", what);
  const Reader reader(what);
  reader.check_keys(root, {"facts", "filler", "distractors"});
  const auto facts = root.find("facts"), distractors = root.find("distractors");
  if (facts == root.end() || !facts->is_array() || facts->empty())
    reader.reject("facts", "a non-empty list");
  NeedleTemplate form{.filler = reader.words(root, "filler")};
  for (const json& object : *facts) form.facts.push_back(reader.facts(object));
  if (distractors != root.end()) {
    if (!distractors->is_number_unsigned() || distractors->get<uint64_t>() > kMaxDistractors)
      reader.reject("distractors", fmt::format("a number from 0 to {}", kMaxDistractors));
    form.distractors = distractors->get<int64_t>();
  }
  return form;
}

const NeedleTemplate& default_needle_template() {
  static const NeedleTemplate form = plain_english();
  return form;
}

}  // namespace dsv4
