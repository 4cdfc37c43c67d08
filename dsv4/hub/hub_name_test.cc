// Names of models, revisions and files of the hub; what its API answers.

#include "dsv4/hub/hub_name.h"

#include <gtest/gtest.h>

#include "dsv4/hub/hub_file.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using test::error_of;
using test::says;

TEST(HubName, ParsesNamesAndRevisions) {
  const auto name = parse_hub_name("deepseek-ai/DeepSeek-V4-Flash");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->repo, "deepseek-ai/DeepSeek-V4-Flash");
  EXPECT_EQ(name->revision, "main");
  EXPECT_EQ(name->text(), "deepseek-ai/DeepSeek-V4-Flash");
  const auto pull_request = parse_hub_name("a/b@refs/pr/3");
  ASSERT_TRUE(pull_request);
  EXPECT_EQ(pull_request->revision, "refs/pr/3");
  EXPECT_EQ(pull_request->text(), "a/b@refs/pr/3");
}

TEST(HubName, RefusesWhatIsNoName) {
  for (const char* text :
       {"",        "a",       "/a",      "a/",       "a/b/c",   "./a",    "../a",
        "a/..",    "a/.b",    "a/b.",    "-a/b",     "a/b-",    "a--b/c", "a/b..c",
        "a/b.git", "a b/c",   "a/b@",    "a/b@../x", "a/b@/x",  "a/b@x/", "a/b@x//y",
        "a/b@-x",  "a/b@x y", "a/b@x\n", "a/b@.",    "a/b@c@d", "a/b?c",  "ä/b"})
    EXPECT_FALSE(parse_hub_name(text)) << text;
  EXPECT_FALSE(parse_hub_name("a/" + std::string(97, 'b')));
  EXPECT_TRUE(parse_hub_name("a/" + std::string(96, 'b')));
}

TEST(HubFile, RefusesPathsThatLeaveTheFolder) {
  const auto tree = [](const std::string& path) {
    return R"([{"type": "file", "size": 1, "path": ")" + path + R"(", "oid": ")" +
           std::string(40, 'a') + "\"}]";
  };
  EXPECT_EQ(parse_hub_tree(tree("a/b.c"), "x").at(0).path, "a/b.c");
  EXPECT_EQ(parse_hub_tree(tree(".gitattributes"), "x").size(), 1u);
  for (const char* path :
       {"", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a/.", "a\\u0000b", "a\\nb", "a\\u007f"})
    EXPECT_TRUE(says(error_of(ErrorCode::kBadInput, [&] { parse_hub_tree(tree(path), "x"); }),
                     "which is no path inside the model"))
        << path;
  EXPECT_NE("", error_of(ErrorCode::kBadInput,
                         [&] { parse_hub_tree(tree(std::string(256, 'a')), "x"); }));
}

TEST(HubFile, ReadsBothKindsOfHashes) {
  const std::string sha1(40, 'b'), sha256(64, 'c');
  const auto files = parse_hub_tree(
      R"([{"type": "directory", "path": "d", "oid": "0", "size": 0},
          {"type": "file", "path": "small", "oid": ")" +
          sha1 + R"(", "size": 7},
          {"type": "file", "path": "large", "oid": ")" +
          sha1 + R"(", "size": 9, "lfs": {"oid": ")" + sha256 + R"(", "size": 9}}])",
      "x");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_FALSE(files[0].lfs);
  EXPECT_EQ(files[0].oid, sha1);
  EXPECT_EQ(files[0].size, 7);
  EXPECT_TRUE(files[1].lfs);
  EXPECT_EQ(files[1].oid, sha256);
  for (const char* bad :
       {"{}", "[1]", "nonsense", R"([{"type": "file", "path": "a", "oid": "../../x", "size": 1}])",
        R"([{"type": "file", "path": "a", "oid": "aa", "size": 1}])",
        R"([{"type": "file", "path": "a", "size": -1}])", R"([{"type": "file", "path": 3}])"})
    EXPECT_NE("", error_of(ErrorCode::kBadInput, [&] { parse_hub_tree(bad, "x"); })) << bad;
}

TEST(HubFile, FindsTwoFilesOfOnePath) {
  EXPECT_NO_THROW(check_hub_paths({{.path = "a"}, {.path = "b/a"}, {.path = "b/c"}}, "x"));
  EXPECT_TRUE(says(error_of(ErrorCode::kBadInput,
                            [] {
                              check_hub_paths({{.path = "a"}, {.path = "a"}}, "x");
                            }),
                   "lists a twice"));
  EXPECT_TRUE(says(error_of(ErrorCode::kBadInput,
                            [] {
                              check_hub_paths({{.path = "a/b"}, {.path = "a"}}, "x");
                            }),
                   "both as a file and as a folder"));
}

TEST(HubFile, ReadsHeaders) {
  EXPECT_EQ(next_page("<https://h/a?b=1>; rel=\"next\""), "https://h/a?b=1");
  EXPECT_EQ(next_page("<https://h/0>; rel=\"prev\", <https://h/2>; rel=\"next\""), "https://h/2");
  EXPECT_EQ(next_page("<https://h/0>; rel=\"prev\""), "");
  EXPECT_EQ(next_page("<<>"), "");
  EXPECT_EQ(retry_after_s("7"), 7);
  EXPECT_EQ(retry_after_s("-7"), -1);
  EXPECT_EQ(retry_after_s("inf"), -1);
  EXPECT_EQ(retry_after_s("Tue, 24 Nov 2026 14:00:00 GMT"), -1);
  ContentRange range;
  ASSERT_TRUE(parse_content_range("bytes 5-9/100", &range));
  EXPECT_EQ(range.first, 5);
  EXPECT_EQ(range.last, 9);
  EXPECT_EQ(range.size, 100);
  for (const char* bad : {"", "bytes", "bytes 5-9", "bytes 5-9/*", "bytes */100", "bytes 5-9/100 ",
                          "bytes -5-9/100", "items 5-9/100", "bytes 5-9/99999999999999999999"})
    EXPECT_FALSE(parse_content_range(bad, &range)) << bad;
}

}  // namespace
}  // namespace dsv4
