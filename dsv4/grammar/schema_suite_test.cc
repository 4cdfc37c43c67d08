// The public JSON-Schema-Test-Suite (github.com/json-schema-org), which is not in this repository:
// DSV4_SCHEMA_SUITE names its folder `tests`, and without it this test is skipped.
//
// What a schema does not allow is never accepted; a schema outside the subset is refused with the
// one error for that. Valid values may be refused: the grammar is narrower (schema_grammar.h). Left
// out are optional files about keywords and formats that are annotations here.

#include <cstdlib>
#include <filesystem>

#include "dsv4/base/mapped_file.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

bool is_about_annotations(const fs::path& file) {
  return file.filename() == "content.json" || file.filename() == "idn-email.json" ||
         file.filename() == "idn-hostname.json";
}

// A schema of the suite is one of its folder's draft, which most do not name.
JsonValue of_draft(const JsonValue& schema, const std::string& draft) {
  if (draft != "draft7" || !schema.is_object() || schema.find("$schema") != nullptr) return schema;
  JsonValue named = schema;
  named.add("$schema", JsonValue::of_string("http://json-schema.org/draft-07/schema#"));
  return named;
}

struct Counts {
  int schemas = 0, unsupported = 0, invalid = 0, valid = 0, valid_accepted = 0;
};

void run_case(const JsonValue& one, const std::string& draft, const std::string& where,
              Counts& counts) {
  const JsonValue schema = of_draft(*one.find("schema"), draft);
  ++counts.schemas;
  std::optional<TokenMasks> masks;
  try {
    masks.emplace(json_schema_grammar(schema, JsonSpaces::kSome, "schema"), test::demo_tree());
  } catch (const RequestError& refused) {
    EXPECT_EQ(refused.api_code(), "unsupported_schema") << where << refused.what();
    ++counts.unsupported;
    return;
  } catch (const Error& refused) {  // too large, or a rule that begins with itself
    EXPECT_EQ(refused.code(), ErrorCode::kBadInput) << where << refused.what();
    ++counts.unsupported;
    return;
  }
  for (const JsonValue& test : one.find("tests")->items) {
    const auto data = std::find_if(test.members.begin(), test.members.end(),
                                   [](const auto& member) { return member.first == "data"; });
    const std::string text = to_json(data->second);
    const bool accepted = test::matches(*masks, text);
    if (test.find("valid")->boolean) {
      ++counts.valid;
      counts.valid_accepted += accepted;
    } else {
      ++counts.invalid;
      EXPECT_FALSE(accepted) << where << ": " << to_json(schema) << " accepts " << text;
    }
  }
}

// What is refused and which valid values are not accepted, of the suite in jsonschema 4.26.0: a
// number that changes is a decision, and is changed here with it.
const std::pair<const char*, Counts> kKnown[] = {
    {"draft2020-12",
     {.schemas = 431, .unsupported = 140, .invalid = 548, .valid = 859, .valid_accepted = 517}},
    {"draft7",
     {.schemas = 305, .unsupported = 35, .invalid = 498, .valid = 757, .valid_accepted = 480}}};

TEST(SchemaSuite, NothingInvalidIsAccepted) {
  const char* const folder = std::getenv("DSV4_SCHEMA_SUITE");
  if (folder == nullptr)
    GTEST_SKIP() << "no JSON-Schema-Test-Suite (DSV4_SCHEMA_SUITE names no folder)";
  for (const auto& [draft, known] : kKnown) {
    Counts counts;
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(folder) / draft)) {
      if (entry.path().extension() != ".json" || is_about_annotations(entry.path())) continue;
      const JsonValue cases = parse_json(read_text_file(entry.path().string()), "suite");
      for (const JsonValue& one : cases.items) {
        run_case(one, draft,
                 entry.path().filename().string() + ", " + one.find("description")->text, counts);
      }
    }
    std::printf(
        "%s: %d schemas, %d of them unsupported; %d invalid values; %d of %d valid values "
        "accepted\n",
        draft, counts.schemas, counts.unsupported, counts.invalid, counts.valid_accepted,
        counts.valid);
    EXPECT_GT(counts.invalid, 100);
    EXPECT_GT(counts.valid_accepted, counts.valid / 2);
    if (counts.schemas != known.schemas || counts.valid != known.valid) continue;  // another suite
    EXPECT_EQ(counts.unsupported, known.unsupported) << draft;
    EXPECT_EQ(counts.valid_accepted, known.valid_accepted) << draft;
  }
}

}  // namespace
}  // namespace dsv4
