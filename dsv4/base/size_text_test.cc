#include "dsv4/base/size_text.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(SizeText, TakesTheLargestUnit) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1.0 KiB");
  EXPECT_EQ(size_text(19293798), "18.4 MiB");
  EXPECT_EQ(size_text(int64_t{1} << 30), "1.0 GiB");
  EXPECT_EQ(size_text(int64_t{5} << 40), "5120.0 GiB");
  EXPECT_EQ(size_text(-2048), "-2.0 KiB");
  EXPECT_EQ(size_text((int64_t{1} << 30) * 1337 / 100, 2), "13.37 GiB");
}

TEST(SizeText, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_size("60G"), int64_t{60} << 30);
  EXPECT_EQ(parse_size("23.5GiB"), (int64_t{47} << 30) / 2);
  EXPECT_EQ(parse_size("512m"), int64_t{512} << 20);
  EXPECT_EQ(parse_size("0.2T"), static_cast<int64_t>(0.2 * 0x1p40));
  EXPECT_EQ(parse_size("1kib"), 1024);
  for (const char* text : {"", "0G", "-1G", "60", "60X", "60GB", "nanG", "infG", "1e9T", "G", " 1G",
                           "1 G", "1GiBs", "iB"})
    EXPECT_FALSE(parse_size(text)) << text;
}

}  // namespace
}  // namespace dsv4
