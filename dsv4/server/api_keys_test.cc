#include "dsv4/server/api_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/chat/sha256.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

TEST(ApiKeys, FindsKeysByTheirDigest) {
  const ApiKeys keys = ApiKeys::parse(
      "# comment\n"
      "alice:secret-of-alice\n"
      "\n"
      "root:secret-of-root:admin\r\n"
      // printf secret-of-bob | sha256sum
      "bob:sha256:" +
          [] {
            std::string hex;
            for (const uint8_t byte : sha256("secret-of-bob")) hex += fmt::format("{:02X}", byte);
            return hex;
          }() +
          "\n",
      "keys");
  EXPECT_EQ(keys.size(), 3u);
  ASSERT_NE(keys.find("secret-of-alice"), nullptr);
  EXPECT_EQ(keys.find("secret-of-alice")->name, "alice");
  EXPECT_FALSE(keys.find("secret-of-alice")->admin);
  EXPECT_TRUE(keys.find("secret-of-root")->admin);
  ASSERT_NE(keys.find("secret-of-bob"), nullptr);
  EXPECT_EQ(keys.find("secret-of-bob")->name, "bob");
  for (const char* wrong : {"", "secret", "secret-of-alice ", "alice", "sha256"})
    EXPECT_EQ(keys.find(wrong), nullptr) << wrong;
}

TEST(ApiKeys, ErrorsNameTheLineAndNotTheKey) {
  for (const char* text : {"short:1234567", "nocolon-but-long-enough", ":secret-without-name",
                           "a:b:c:d-long-enough", "a:sha256:1234"}) {
    try {
      ApiKeys::parse(std::string("# first\n") + text, "keys");
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      EXPECT_NE(std::string(error.what()).find("keys:2: "), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
    }
  }
}

TEST(ApiKeys, ReadsBothHeaders) {
  EXPECT_EQ(presented_key("Bearer abc", ""), "abc");
  EXPECT_EQ(presented_key("bearer abc", "xyz"), "abc");
  EXPECT_EQ(presented_key("", "xyz"), "xyz");
  EXPECT_EQ(presented_key("Basic abc", ""), "");
  EXPECT_EQ(presented_key("Bearer ", ""), "");
}

TEST(ApiKeys, AFileThatOthersMayReadOrWriteIsNamed) {
  const test::TempFolder scratch;
  const std::string path = scratch.file("keys");
  write_file(path, "a:a-secret-key\n");
  const auto warning = [&](mode_t mode) {
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return open_to_others(path);
  };
  for (const mode_t fine : {0600, 0400, 0640}) EXPECT_EQ(warning(fine), "") << fine;
  EXPECT_NE(warning(0644).find("every user may read it (mode 0644)"), std::string::npos);
  EXPECT_NE(warning(0660).find("other users may write it"), std::string::npos);
  EXPECT_EQ(open_to_others(scratch.file("none")), "");
  EXPECT_EQ(open_to_others("/dev/null"), "") << "no file, as <(echo ...) of a shell";
}

}  // namespace
}  // namespace dsv4
