#include "dsv4/formats/index_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/formats/pack_index_key.h"

namespace dsv4 {
namespace {

static_assert(IndexLayoutFp4{}.page_bytes(64) == 64 * 68);
static_assert(IndexLayoutFp4{}.scale_offset(64, 3) == 64 * 64 + 4 * 3);

TEST(IndexLayoutFp4, GoldenBytes) {
  std::vector<uint8_t> page(2 * 68, 0xee);
  std::vector<float> x(128, 0.f);
  x[0] = -1.f, x[1] = 3.f, x[2] = 6.f;  // group 0: amax 6, s = 1
  x[127] = 6.5f;                        // group 3: s = 2, 3.25 -> 3
  pack_index_key(IndexLayoutFp4{}, x.data(), page.data(), 2, 1);
  for (size_t b = 0; b < 64; ++b) ASSERT_EQ(page[b], 0xee) << "key 0 was not written";
  EXPECT_EQ(page[64], 0x5a);
  EXPECT_EQ(page[65], 0x07);
  EXPECT_EQ(page[127], 0x50);
  for (size_t b = 128; b < 132; ++b) ASSERT_EQ(page[b], 0xee);
  EXPECT_EQ(page[132], 127);
  EXPECT_EQ(page[133], 1) << "an empty group has the floor's scale";
  EXPECT_EQ(page[135], 128);
  std::vector<float> back(128);
  unpack_index_key(IndexLayoutFp4{}, page.data(), 2, 1, back.data());
  EXPECT_EQ(back[0], -1.f);
  EXPECT_EQ(back[127], 6.f);
}

void check_round_trip(const IndexLayoutFp4& layout) {
  Rng rng(4);
  const auto width = static_cast<size_t>(layout.width);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> x(width), once(width), twice(width);
    const double sigma = std::ldexp(1.0, static_cast<int>(rng.below(60)) - 30);
    for (float& v : x) v = static_cast<float>(sigma * rng.normal());
    std::vector<uint8_t> a(static_cast<size_t>(layout.page_bytes(3))), b = a;
    pack_index_key(layout, x.data(), a.data(), 3, 1);
    unpack_index_key(layout, a.data(), 3, 1, once.data());
    pack_index_key(layout, once.data(), b.data(), 3, 1);
    unpack_index_key(layout, b.data(), 3, 1, twice.data());
    ASSERT_EQ(once, twice);
  }
}

TEST(IndexLayout, QuantizedValuesAreStable) {
  check_round_trip(IndexLayoutFp4{});
  check_round_trip(IndexLayoutFp4{32});
}

TEST(IndexLayout, KeysTileThePage) {
  for (const int64_t keys : {1, 2, 64}) {
    std::vector<int> owners(static_cast<size_t>(IndexLayoutFp4{}.page_bytes(keys)), 0);
    for (int64_t i = 0; i < keys; ++i) {
      for (int64_t b = 0; b < 64; ++b)
        ++owners.at(static_cast<size_t>(IndexLayoutFp4{}.code_offset(i) + b));
      for (int64_t b = 0; b < 4; ++b)
        ++owners.at(static_cast<size_t>(IndexLayoutFp4{}.scale_offset(keys, i) + b));
    }
    EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << keys;
  }
}

}  // namespace
}  // namespace dsv4
