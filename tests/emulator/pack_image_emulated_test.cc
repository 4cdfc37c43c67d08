// The kernel of pack_image.h on the emulator: the bytes of the CPU.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/kbit/image_exponents.cuh"
#include "dsv4/ops/kbit/pack_image.cuh"
#include "tests/emulator/launch.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

std::vector<uint8_t> by_cpu(const KbitImage& image, std::span<const WeightView> weights) {
  std::vector<uint8_t> bytes(static_cast<size_t>(image.bytes()));
  const auto strip = static_cast<size_t>(image.strip_bytes());
  for (int64_t s = 0; s < image.num_strips(); ++s)
    pack_kbit_strip(image, weights, s,
                    std::span(bytes).subspan(static_cast<size_t>(s) * strip, strip));
  return bytes;
}

template <int K, ImageScale kScale>
std::vector<uint8_t> by_kernel(const KbitImage& image, std::span<const WeightView> weights) {
  const auto flat = [](const WeightView& w) {
    return FlatKbit{reinterpret_cast<const uint32_t*>(w.data.data), w.scale.as<uint8_t>()};
  };
  const kbit_packing::Source source{flat(weights.front()), flat(weights.back()),
                                    static_cast<int>(weights.size())};
  std::vector<uint8_t> bytes(static_cast<size_t>(image.bytes()), 0xee);
  const int64_t units = image.num_strips() * image.units_along_k();
  emulator::launch({.grid = static_cast<int>(ceil_div(units, kbit_packing::kWarps)),
                    .block = kbit_packing::kWarps * kWarp},
                   [&] {
                     kbit_packing::pack_kernel<K, kScale>(
                         image, source, reinterpret_cast<std::byte*>(bytes.data()));
                   });
  return bytes;
}

template <int K, ImageScale kScale>
void check_shape(const test::StoredAs& stored, int64_t n, int64_t k) {
  SCOPED_TRACE(fmt::format("{} n={} k={}", name(stored), n, k));
  Rng rng(static_cast<uint64_t>(K + n + k));
  test::Arena arena;
  std::vector<WeightView> both{test::random_weight(arena, rng, stored, n, k),
                               test::random_weight(arena, rng, stored, n, k)};
  both[1].codebook = both[0].codebook;
  const std::span<const WeightView> gate(both.data(), 1);
  const KbitImage one = kbit_image(both[0]), image = kbit_image(both[0], both[1]);
  EXPECT_EQ((by_kernel<K, kScale>(one, gate)), by_cpu(one, gate));
  EXPECT_EQ((by_kernel<K, kScale>(image, both)), by_cpu(image, both));
}

template <int K, ImageScale kScale = ImageScale::kE4M4>
void check(const test::StoredAs& stored = {WeightFormat::kKbit, K}) {
  for (const int64_t n : {8, 40, 64})
    for (const int64_t k : {32, 288, 512}) check_shape<K, kScale>(stored, n, k);
  check_shape<K, kScale>(stored, 24, 7168);  // V4-Pro's x
  check_shape<K, kScale>(stored, 16, 3072);
}

TEST(PackImageEmulated, HasTheBytesOfTheCpu) {
  check<2>(), check<3>(), check<4>(), check<5>();
}

TEST(PackImageEmulated, Fp4HasTheBytesOfTheCpu) {
  check<4, ImageScale::kUe8m0>({WeightFormat::kMxfp4});
  check<4, ImageScale::kE4M3>({WeightFormat::kNvfp4});
}

// Exponents of blocks with weights, and none of zeros or of padding.
TEST(PackImageEmulated, FindsTheRangeOfExponents) {
  Rng rng(7);
  for (const int64_t k : {32, 288, 512}) {
    test::Arena arena;
    std::vector<uint8_t> images;
    std::vector<int32_t> want;  // of gate, of up for each expert: largest, 256 - least
    constexpr int64_t kExperts = 3;
    KbitImage image;
    for (int64_t e = 0; e < kExperts; ++e) {
      std::vector<WeightView> both;
      for (int which = 0; which < 2; ++which) {
        both.push_back(test::random_weight(arena, rng, {WeightFormat::kMxfp4}, 40, k));
        auto* codes = const_cast<uint8_t*>(both.back().data.as<uint8_t>());
        auto* scale = const_cast<uint8_t*>(both.back().scale.as<uint8_t>());
        int32_t largest = 0, least = 256;
        for (int64_t block = 0; block < 40 * k / 32; ++block) {
          std::fill_n(codes + block * 16, 16, static_cast<uint8_t>(0x80));
          scale[block] = static_cast<uint8_t>(rng.below(256));
          if (rng.below(3) != 0) continue;
          codes[block * 16 + static_cast<int64_t>(rng.below(16))] = rng.below(2) == 0 ? 0x01 : 0x70;
          largest = std::max<int32_t>(largest, scale[block]);
          least = std::min<int32_t>(least, scale[block]);
        }
        want.push_back(largest), want.push_back(256 - least);
      }
      image = kbit_image(both[0], both[1]);
      const std::vector<uint8_t> bytes = by_cpu(image, both);
      images.insert(images.end(), bytes.begin(), bytes.end());
    }
    std::vector<ExponentRange> found(2 * kExperts);
    const int64_t units = image.num_strips() * image.units_along_k();
    emulator::launch({.grid = {static_cast<int>(ceil_div(units, kbit_packing::kRangeWarps)),
                               static_cast<int>(kExperts)},
                      .block = kbit_packing::kRangeWarps * kWarp},
                     [&] {
                       kbit_packing::exponents_kernel(
                           image, true, reinterpret_cast<const std::byte*>(images.data()),
                           found.data());
                     });
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].largest, want[2 * i]) << k << ' ' << i;
      EXPECT_EQ(found[i].below_256, want[2 * i + 1]) << k << ' ' << i;
      EXPECT_EQ(found[i].span(), std::max(want[2 * i] + want[2 * i + 1] - 256, 0));
    }
  }
}

// Exponents from `least` to `largest`.
ExponentRange range(int32_t least, int32_t largest) {
  return {.largest = largest, .below_256 = 256 - least};
}

TEST(PackImageEmulated, FoldsExponentsThatE4m3Holds) {
  const std::vector<ExponentRange> gate_up{range(100, 111), range(7, 9), {}, range(120, 120)},
      down{range(0, 11), range(243, 254)};
  EXPECT_EQ(folded_exponents(gate_up, down), (std::vector<int32_t>{111, 9, 11, 0, 120, 254}));
  for (const ExponentRange& bad : {range(100, 112), range(250, 255)}) {
    std::vector<ExponentRange> up = gate_up, last = down;
    up[1] = bad, last[1] = bad;
    EXPECT_TRUE(folded_exponents(up, down).empty());
    EXPECT_TRUE(folded_exponents(gate_up, last).empty());
  }
}

}  // namespace
}  // namespace dsv4
