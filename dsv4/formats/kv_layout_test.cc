#include "dsv4/formats/kv_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/pack_kv_entry.h"

namespace dsv4 {
namespace {

constexpr KvLayout kV4{};

// docs/spec/dsv4.md 12.2: payload and stride of pages of 64 and 2 entries; 584 bytes per entry.
static_assert(kV4.page_bytes(64) == 37'440 && 64 * 584 == 37'376);
static_assert(kV4.page_bytes(2) == 1'728 && kV4.page_bytes(0) == 0);
static_assert(kV4.row_bytes() == 584 && kV4.rope_offset(1) == 576 + 448);
static_assert(kV4.entry_offset(3) == 3 * 576 && kV4.scale_offset(64, 3) == 64 * 576 + 3 * 8);
static_assert(kV4.width() == 512 && kV4.num_scales() == 7);
// docs/spec/attention-kernels.md 1.3: 512 | 16 | 128 bytes, nothing between rows.
static_assert(kV32Layout.entry_bytes() == 656 && kV32Layout.page_bytes(3) == 3 * 656);
static_assert(kV32Layout.scale_offset(64, 2) == 2 * 656 + 512);
static_assert(kV32Layout.rope_offset(2) == 2 * 656 + 528);
static_assert(kV32Layout.width() == 576 && kV32Layout.num_scales() == 4);

TEST(KvLayout, EveryByteOfAPageHasAtMostOneOwner) {
  for (const KvLayout& layout : {kV4, KvLayout{64, 16}, KvLayout{576, 0}, KvLayout{0, 8},
                                 kV32Layout, KvLayout{128, 6, KvRowFormat::kV32}}) {
    for (const int64_t entries : {1, 2, 3, 64}) {
      std::vector<int> owners(static_cast<size_t>(layout.page_bytes(entries)), 0);
      const auto mark = [&](int64_t offset, int64_t bytes) {
        for (int64_t b = offset; b < offset + bytes; ++b) ++owners.at(static_cast<size_t>(b));
      };
      for (int64_t i = 0; i < entries; ++i) {
        mark(layout.entry_offset(i), layout.nope);
        mark(layout.rope_offset(i), 2 * layout.rope);
        mark(layout.scale_offset(entries, i), layout.scale_bytes());
      }
      const int64_t payload = entries * layout.row_bytes();
      for (size_t b = 0; b < owners.size(); ++b) {
        EXPECT_EQ(owners[b], b < static_cast<size_t>(payload) ? 1 : 0) << "byte " << b;
      }
      EXPECT_EQ(layout.page_bytes(entries) % layout.entry_bytes(), 0);
    }
  }
}

// Offsets written out as numbers of docs/spec/dsv4.md 12.2, not through the layout.
TEST(KvLayout, GoldenBytes) {
  std::vector<uint8_t> page(1728, 0xee);
  std::vector<float> first(512, 0.f), second(512, 0.f);
  first[0] = 3.f;             // group 0: s = 2^-7, code of 384
  first[1] = 0.10009765625f;  // 12.8125 -> 13
  first[63] = -3.f;
  first[64] = 448.f;    // group 1: s = 1
  second[447] = -0.5f;  // group 6: amax 0.5, s = 2^-9, code of -256
  second[448] = 1.f;
  second[511] = -2.f;
  pack_kv_entry(kV4, first.data(), page.data(), 2, 0);
  pack_kv_entry(kV4, second.data(), page.data(), 2, 1);

  EXPECT_EQ(page[0], 0x7c);
  EXPECT_EQ(page[1], 0x55);  // 13 = 2^3 * (1 + 5/8)
  EXPECT_EQ(page[63], 0xfc);
  EXPECT_EQ(page[64], 0x7e);
  EXPECT_EQ(page[576 + 447], 0xf8);
  EXPECT_EQ(page[576 + 448], 0x80);  // bf16 1.0 = 3f80, low byte first
  EXPECT_EQ(page[576 + 449], 0x3f);
  EXPECT_EQ(page[576 + 574], 0x00);  // bf16 -2.0 = c000
  EXPECT_EQ(page[576 + 575], 0xc0);
  const uint8_t scales[16] = {0x78, 0x7f, 105, 105, 105, 105, 105, 0,  //
                              105,  105,  105, 105, 105, 105, 118, 0};
  for (size_t b = 0; b < 16; ++b) EXPECT_EQ(page[1152 + b], scales[b]) << b;
  for (size_t b = 1168; b < 1728; ++b) ASSERT_EQ(page[b], 0xee) << "the padding was written";

  std::vector<float> back(512);
  unpack_kv_entry(kV4, page.data(), 2, 0, back.data());
  EXPECT_EQ(back[0], 3.f);
  EXPECT_EQ(back[1], 0.1015625f);
  EXPECT_EQ(back[64], 448.f);
}

// Offsets written out as numbers of docs/spec/attention-kernels.md 1.3.
TEST(KvLayout, GoldenBytesOfV32) {
  std::vector<uint8_t> page(2 * 656, 0xee);
  std::vector<float> x(576, 0.f);
  x[0] = 448.f;      // group 0: s = 1, the largest code
  x[1] = -13.f;      // 2^3 * (1 + 5/8)
  x[128] = 449.f;    // group 1: s = 2, code of 224.5 -> 224
  x[256] = 1e-5f;    // group 2: s is the floor, 2^-13 = pow2ceil(1e-4); code of 0.08192
  x[511] = 0.4375f;  // group 3: 7/16 = 448 * 2^-10 has s = 2^-10
  x[512] = 1.f;
  x[575] = -2.f;
  pack_kv_entry(kV32Layout, x.data(), page.data(), 2, 1);

  for (size_t b = 0; b < 656; ++b)
    ASSERT_EQ(page[b], 0xee) << "the other row was written, byte " << b;
  EXPECT_EQ(page[656], 0x7e);
  EXPECT_EQ(page[656 + 1], 0xd5);
  EXPECT_EQ(page[656 + 2], 0x00);
  EXPECT_EQ(page[656 + 128], 0x76);  // 224 = 2^7 * (1 + 6/8)
  EXPECT_EQ(page[656 + 256], 0x1a);  // 0.078125 = 2^-4 * (1 + 2/8)
  EXPECT_EQ(page[656 + 511], 0x7e);
  const uint8_t scales[16] = {0, 0, 0x80, 0x3f, 0, 0, 0x00, 0x40,   // 1, 2
                              0, 0, 0x00, 0x39, 0, 0, 0x80, 0x3a};  // 2^-13, 2^-10
  for (size_t b = 0; b < 16; ++b) EXPECT_EQ(page[656 + 512 + b], scales[b]) << b;
  EXPECT_EQ(page[656 + 528], 0x80);  // bf16 1.0 = 3f80, low byte first
  EXPECT_EQ(page[656 + 529], 0x3f);
  EXPECT_EQ(page[656 + 654], 0x00);  // bf16 -2.0 = c000
  EXPECT_EQ(page[656 + 655], 0xc0);

  std::vector<float> back(576);
  unpack_kv_entry(kV32Layout, page.data(), 2, 1, back.data());
  EXPECT_EQ(back[0], 448.f);
  EXPECT_EQ(back[1], -13.f);
  EXPECT_EQ(back[128], 448.f);
  EXPECT_EQ(back[256], 0x1.4p-4f * 0x1p-13f);
  EXPECT_EQ(back[575], -2.f);
}

// Serving engines also write scales that are not powers of two.
TEST(KvLayout, UnpacksAnyScaleOfV32) {
  std::vector<uint8_t> row(656, 0);
  const float scales[4] = {0.3f, 1.f / 448.f, 3e-39f, 1000.1f};
  std::memcpy(row.data() + 512, scales, 16);
  for (size_t c = 0; c < 512; ++c) row[c] = 0x55;  // 13
  std::vector<float> x(576);
  unpack_kv_entry(kV32Layout, row.data(), 1, 0, x.data());
  for (size_t c = 0; c < 512; ++c) ASSERT_EQ(x[c], 13.f * scales[c / 128]) << c;
}

TEST(KvLayout, PackingWritesOnlyItsEntry) {
  std::vector<uint8_t> page(static_cast<size_t>(kV4.page_bytes(4)), 0xee);
  const std::vector<float> x(512, 1.f);
  pack_kv_entry(kV4, x.data(), page.data(), 4, 2);
  for (size_t b = 0; b < page.size(); ++b) {
    const bool inside = (b >= 2 * 576 && b < 3 * 576) || (b >= 4 * 576 + 16 && b < 4 * 576 + 24);
    ASSERT_EQ(page[b] != 0xee, inside) << b;
  }
}

// Quantized values are unchanged by a second pack. Their bytes may change once more: a group whose
// largest value rounds down to 224 s has the largest value 448 * s/2 the next time.
TEST(KvLayout, PackOfUnpackIsStable) {
  Rng rng(3);
  for (const KvLayout& layout : {kV4, KvLayout{64, 16}, kV32Layout}) {
    const auto width = static_cast<size_t>(layout.width());
    for (int round = 0; round < 300; ++round) {
      std::vector<float> x(width), once(width), twice(width);
      const double sigma = std::ldexp(1.0, static_cast<int>(rng.below(60)) - 30);
      for (float& v : x) v = static_cast<float>(sigma * rng.normal());
      std::vector<uint8_t> a(static_cast<size_t>(layout.page_bytes(3))), b = a, c = a;
      pack_kv_entry(layout, x.data(), a.data(), 3, 1);
      unpack_kv_entry(layout, a.data(), 3, 1, once.data());
      pack_kv_entry(layout, once.data(), b.data(), 3, 1);
      unpack_kv_entry(layout, b.data(), 3, 1, twice.data());
      pack_kv_entry(layout, twice.data(), c.data(), 3, 1);
      ASSERT_EQ(once, twice);
      ASSERT_EQ(b, c);
      for (size_t i = 0; i < width; ++i)
        ASSERT_EQ(round_to_bf16(once[i]), once[i]) << "exact in bf16";
    }
  }
}

}  // namespace
}  // namespace dsv4
