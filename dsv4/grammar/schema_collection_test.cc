// A public collection of real schemas with valid and invalid instances, which is not in this
// repository (MaskBench of github.com/guidance-ai/jsonschemabench, 11,306 schemas):
// DSV4_SCHEMA_COLLECTION names its folder `data`, and without it this test is skipped. A file is
// {"schema": S, "tests": [{"valid": bool, "data": V}, ...]}.
//
// A schema passes when it compiles, every valid instance is accepted and every invalid one is not.
// The grammar fixes the order of keys, so an instance counts as accepted when any order of its keys
// is. The test prints what was refused, by reason, and how long compiling took,
// in CPU time.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <tuple>

#include "dsv4/base/mapped_file.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using State = TokenMasks::State;

// Feeds a value to the grammar with the members of its objects in every order that the grammar
// allows, until `then` is content with the state behind it.
class AnyOrder {
 public:
  explicit AnyOrder(TokenMasks& masks) : masks_(masks) {}

  bool matches(const JsonValue& value) {
    return feed(value, masks_.start(), [&](State end) { return masks_.accepts(end); });
  }

 private:
  using Then = std::function<bool(State)>;

  bool text(std::string_view bytes, State state, const Then& then) {
    if (++steps_ > kMostSteps) return false;
    state = masks_.advance_bytes(state, bytes);
    return state != TokenMasks::kDead && then(state);
  }
  bool feed(const JsonValue& value, State state, const Then& then) {
    if (value.is_object()) {
      std::vector<bool> used(value.members.size());
      return text("{", state, [&](State next) { return members(value, used, 0, next, then); });
    }
    if (value.is_array())
      return text("[", state, [&](State next) { return items(value, 0, next, then); });
    return text(to_json(value), state, then);
  }
  bool items(const JsonValue& list, size_t at, State state, const Then& then) {
    if (at == list.items.size()) return text("]", state, then);
    return text(at > 0 ? ", " : "", state, [&](State next) {
      return feed(list.items[at], next,
                  [&](State after) { return items(list, at + 1, after, then); });
    });
  }
  bool members(const JsonValue& object, std::vector<bool>& used, size_t count, State state,
               const Then& then) {
    if (count == used.size()) return text("}", state, then);
    // Orders that led here before and did not fit are not tried again.
    if (!tried_.insert({&object, used, state}).second) return false;
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      used[i] = true;
      const auto& [key, value] = object.members[i];
      const std::string begin = (count > 0 ? ", " : "") + to_json(JsonValue::of_string(key)) + ": ";
      const bool found = text(begin, state, [&, &member = value](State next) {
        return feed(member, next,
                    [&](State after) { return members(object, used, count + 1, after, then); });
      });
      used[i] = false;
      if (found) return true;
    }
    return false;
  }

  static constexpr int kMostSteps = 10'000;
  TokenMasks& masks_;
  int steps_ = 0;
  std::set<std::tuple<const JsonValue*, std::vector<bool>, State>> tried_;
};

struct Counts {
  int schemas = 0, refused = 0, right = 0;
  int valid = 0, valid_refused = 0, invalid = 0, invalid_accepted = 0;
  std::vector<double> compile_seconds;
  std::map<std::string, int> reasons;
};

// "field: schema at /place: what" without the place and what is quoted.
std::string reason_of(std::string_view message) {
  const size_t at = message.find("schema at ");
  if (at != message.npos) message.remove_prefix(std::min(message.find(": ", at), message.size()));
  return std::string(message.substr(0, 90));
}

void run_file(const fs::path& path, Counts& counts, std::ostream* log) {
  const JsonValue file = parse_json(read_text_file(path.string()), path.filename().string());
  const auto schema = std::find_if(file.members.begin(), file.members.end(),
                                   [](const auto& member) { return member.first == "schema"; });
  ++counts.schemas;
  std::optional<TokenMasks> masks;
  const double begin = test::cpu_seconds();
  try {
    masks.emplace(json_schema_grammar(schema->second, JsonSpaces::kSome, "schema"),
                  test::demo_tree());
  } catch (const Error& error) {
    const auto* request = dynamic_cast<const RequestError*>(&error);
    EXPECT_TRUE(request != nullptr || error.code() == ErrorCode::kBadInput) << path << error.what();
    ++counts.refused;
    ++counts.reasons[reason_of(error.what())];
    if (log != nullptr) *log << path.filename().string() << " refused " << error.what() << "\n";
    return;
  }
  counts.compile_seconds.push_back(test::cpu_seconds() - begin);
  if (log != nullptr) {
    *log << path.filename().string()
         << fmt::format(" compiled in {:.2f} ms", 1e3 * counts.compile_seconds.back()) << "\n";
  }
  bool right = true;
  const JsonValue* tests = file.find("tests");
  for (size_t i = 0; tests != nullptr && i < tests->items.size(); ++i) {
    const JsonValue& test = tests->items[i];
    const auto data = std::find_if(test.members.begin(), test.members.end(),
                                   [](const auto& member) { return member.first == "data"; });
    const bool valid = test.find("valid")->boolean;
    const bool accepted = AnyOrder(*masks).matches(data->second);
    ++(valid ? counts.valid : counts.invalid);
    if (valid == accepted) continue;
    right = false;
    ++(valid ? counts.valid_refused : counts.invalid_accepted);
    if (log != nullptr) {
      *log << path.filename().string() << (valid ? " valid refused " : " invalid accepted ")
           << to_json(data->second) << "\n";
    }
  }
  counts.right += right;
}

TEST(SchemaCollection, MostRealSchemasPassAndNothingInvalidIsAccepted) {
  const char* const folder = std::getenv("DSV4_SCHEMA_COLLECTION");
  if (folder == nullptr) GTEST_SKIP() << "DSV4_SCHEMA_COLLECTION names no folder";
  std::ofstream log_file;
  if (const char* path = std::getenv("DSV4_SCHEMA_COLLECTION_LOG")) log_file.open(path);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Counts counts;
  for (const fs::path& path : files)
    run_file(path, counts, log_file.is_open() ? &log_file : nullptr);
  std::sort(counts.compile_seconds.begin(), counts.compile_seconds.end());
  const auto percentile = [&](double p) {
    const auto last = static_cast<double>(counts.compile_seconds.size() - 1);
    return 1e3 * counts.compile_seconds[static_cast<size_t>(p * last)];
  };
  ASSERT_FALSE(counts.compile_seconds.empty());
  std::printf(
      "%d schemas, %d refused, %d right (%.1f %%); %d of %d valid instances refused, %d of %d "
      "invalid ones accepted; compile ms p50 %.2f p99 %.2f most %.2f\n",
      counts.schemas, counts.refused, counts.right, 100.0 * counts.right / counts.schemas,
      counts.valid_refused, counts.valid, counts.invalid_accepted, counts.invalid, percentile(.5),
      percentile(.99), percentile(1));
  std::vector<std::pair<int, std::string>> reasons;
  for (const auto& [reason, count] : counts.reasons) reasons.emplace_back(count, reason);
  std::sort(reasons.rbegin(), reasons.rend());
  for (size_t i = 0; i < std::min<size_t>(reasons.size(), 40); ++i)
    std::printf("%6d%s\n", reasons[i].first, reasons[i].second.c_str());
  EXPECT_EQ(counts.invalid_accepted, 0);
  EXPECT_GE(counts.right, counts.schemas * 8 / 10);
}

}  // namespace
}  // namespace dsv4
