#include "dsv4/loader/shallow_json.h"

#include <gtest/gtest.h>

#include <ctime>

#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

std::string nested(int levels) {
  const auto count = static_cast<size_t>(levels);
  return std::string(count, '[') + std::string(count, ']');
}

std::string refused(std::string_view text, int64_t max_keys = 10) {
  return test::error_of(ErrorCode::kBadInput,
                        [&] { parse_shallow_json(text, "x.json", max_keys); });
}

TEST(ShallowJson, ReadsATree) {
  EXPECT_EQ(parse_shallow_json(R"({"a": [1, {"b": null}]})", "x.json").dump(),
            R"({"a":[1,{"b":null}]})");
  EXPECT_EQ(parse_shallow_json(nested(kMaxJsonDepth), "x.json").dump(), nested(kMaxJsonDepth));
}

TEST(ShallowJson, RefusesWhatIsTooDeepOrTooLong) {
  const std::string deep = "x.json: nested deeper than 64 levels";
  EXPECT_EQ(refused(nested(kMaxJsonDepth + 1)), deep);
  EXPECT_EQ(refused(nested(1'000'000)), deep);
  EXPECT_EQ(refused(std::string(1'000'000, '[')), deep);
  EXPECT_EQ(refused(R"({"a": 1, "b": {"c": 2}})", 2), "x.json: more than 2 keys");
}

TEST(ShallowJson, RefusesWhatIsNoJson) {
  EXPECT_EQ(refused("{"), "x.json: not valid JSON");
  EXPECT_EQ(refused("{} x"), "x.json: not valid JSON");
  EXPECT_EQ(refused({"{}\0x", 4}), "x.json: holds a NUL byte");
}

// A ledger may hold many evaluations. 20,000 objects took a second when each one cost a search
// through all before it.
TEST(ShallowJson, ManyObjectsTakeTimeInProportion) {
  std::string text = "[{}";
  for (int i = 1; i < 100'000; ++i) text += ",{}";
  text += ']';
  timespec begin{}, end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  EXPECT_EQ(parse_shallow_json(text, "x.json").size(), 100'000u);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  EXPECT_LT(static_cast<double>(end.tv_sec - begin.tv_sec) +
                1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec),
            1.5);
}

}  // namespace
}  // namespace dsv4
