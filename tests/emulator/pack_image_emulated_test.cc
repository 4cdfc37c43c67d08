// The kernel of pack_image.h on the emulator: the bytes of the CPU.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"
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

}  // namespace
}  // namespace dsv4
