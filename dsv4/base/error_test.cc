#include "dsv4/base/error.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(Error, HasCodeAndMessage) {
  try {
    fail(ErrorCode::kBadInput, "{} has {} bytes", "x.bin", 7);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_STREQ(error.what(), "x.bin has 7 bytes");
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(Error, MessageIsNotAFormatString) {
  EXPECT_THROW(
      {
        try {
          fail(ErrorCode::kIo, std::string("a {} in a path"));
        } catch (const Error& error) {
          EXPECT_STREQ(error.what(), "a {} in a path");
          throw;
        }
      },
      Error);
}

TEST(Error, CheckReportsPlaceConditionAndValues) {
  int evaluations = 0;
  const auto value = [&] { return ++evaluations; };
  DSV4_CHECK(value() == 1, "never {}", 0);
  EXPECT_EQ(evaluations, 1);
  const int line = __LINE__ + 2;
  try {
    DSV4_CHECK(evaluations == 2, "evaluations={}", evaluations);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.what(), fmt::format("error_test.cc:{}: evaluations == 2: evaluations=1", line));
  }
}

TEST(Error, CheckIsOneStatement) {
  if (true)
    DSV4_CHECK(true, "no dangling else");
  else
    FAIL();
}

TEST(Error, EveryCodeHasAName) {
  EXPECT_STREQ(name(ErrorCode::kInvalidArgument), "invalid argument");
  EXPECT_STREQ(name(ErrorCode::kBadInput), "bad input");
  EXPECT_STREQ(name(ErrorCode::kIo), "i/o error");
  EXPECT_STREQ(name(ErrorCode::kUnsupported), "unsupported");
  EXPECT_STREQ(name(ErrorCode::kResource), "out of room");
}

}  // namespace
}  // namespace dsv4
