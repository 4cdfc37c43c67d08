#include "dsv4/server/shares.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(Shares, AClientIsAnAddressOrASubscribersNetwork) {
  EXPECT_EQ(client_at("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(client_at("::1"), "");
  EXPECT_EQ(client_at("127.0.0.1"), "");
  EXPECT_EQ(client_at("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(client_at("2001:db8:1:2::9"), client_at("2001:db8:1:2:ffff::1"));
  EXPECT_NE(client_at("2001:db8:1:3::9"), client_at("2001:db8:1:2::9"));
  EXPECT_NE(client_at("::ffff:10.0.0.1"), client_at("::ffff:10.0.0.2"));
}

TEST(Shares, TheLastQuarterIsForThoseWhoHoldLittle) {
  EXPECT_TRUE(has_room("a", 256, 0, 0, 192));
  EXPECT_FALSE(has_room("a", 256, 0, 0, 193)) << "by one client";
  EXPECT_FALSE(has_room("a", 256, 192, 192, 1));
  EXPECT_TRUE(has_room("a", 256, 192, 0, 64)) << "by another one";
  EXPECT_TRUE(has_room("a", 256, 255, 63, 1));
  EXPECT_FALSE(has_room("a", 256, 255, 64, 1));
  EXPECT_FALSE(has_room("a", 256, 256, 0, 1));
  EXPECT_TRUE(has_room("a", 1, 0, 0, 1)) << "too few places to keep one";
  EXPECT_FALSE(has_room("a", 0, 0, 0, 1));
  EXPECT_TRUE(has_room("", 256, 255, 255, 1)) << "of clients that cannot be distinguished";
  EXPECT_FALSE(has_room("", 256, 256, 256, 1));
}

}  // namespace
}  // namespace dsv4
