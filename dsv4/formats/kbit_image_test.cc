#include "dsv4/formats/pack_kbit_image.h"

#include <bit>
#include <cstring>
#include <set>
#include <vector>

#include "dsv4/formats/e2m1.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

// Owns a random flat weight.
struct Flat {
  Flat(int64_t n, int64_t k, const Codebook& book, Rng& rng)
      : planes(DType::kI32, {n, k / kKbitBlock * book.bits}),
        scale(DType::kU8, {n, k / kKbitBlock}),
        codebook(DType::kF32, {book.size()}),
        view{.format = WeightFormat::kKbit,
             .n = n,
             .k = k,
             .data = planes,
             .scale = scale,
             .bits = book.bits,
             .codebook = codebook} {
    for (int64_t i = 0; i < planes.view().numel(); ++i)
      planes.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits());
    for (int64_t i = 0; i < scale.view().numel(); ++i)
      scale.as<uint8_t>()[i] = static_cast<uint8_t>(rng.bits());
    std::copy_n(book.value.data(), book.size(), codebook.as<float>());
  }
  ImageTensors tensors() const { return {planes, scale}; }

  Buffer planes, scale, codebook;
  WeightView view;
};

// Owns a random FP4 weight. Scales are any bytes, NaN included: an image moves them.
struct Fp4 {
  Fp4(WeightFormat format, int64_t n, int64_t k, Rng& rng)
      : pairs(DType::kU8, {n, k / 2}),
        scale(format == WeightFormat::kMxfp4 ? DType::kE8M0 : DType::kE4M3,
              {n, k / (format == WeightFormat::kMxfp4 ? kMxfp4Group : kNvfp4Group)}),
        view{.format = format, .n = n, .k = k, .data = pairs, .scale = scale} {
    for (const Buffer* bytes : {&pairs, &scale})
      for (int64_t i = 0; i < bytes->view().numel(); ++i)
        bytes->as<uint8_t>()[i] = static_cast<uint8_t>(rng.bits());
  }
  ImageTensors tensors() const { return {pairs, scale}; }

  Buffer pairs, scale;
  WeightView view;
};

Codebook lopsided(int bits) {
  std::vector<float> values;
  for (int i = 0; i < 1 << bits; ++i) values.push_back(static_cast<float>(i) - 1.25f);
  return user_codebook(values);
}

std::vector<uint8_t> pack(const KbitImage& image, std::span<const WeightView> weights) {
  std::vector<uint8_t> bytes(static_cast<size_t>(image.bytes()), 0xee);
  for (int64_t s = 0; s < image.num_strips(); ++s) {
    pack_kbit_strip(image, weights, s,
                    std::span(bytes).subspan(static_cast<size_t>(s * image.strip_bytes()),
                                             static_cast<size_t>(image.strip_bytes())));
  }
  return bytes;
}

void unpack(const KbitImage& image, std::span<const uint8_t> bytes,
            std::span<const ImageTensors> weights) {
  for (int64_t s = 0; s < image.num_strips(); ++s) {
    unpack_kbit_strip(image,
                      bytes.subspan(static_cast<size_t>(s * image.strip_bytes()),
                                    static_cast<size_t>(image.strip_bytes())),
                      s, weights);
  }
}

template <class Weight>
void expect_same(const Weight& a, const Weight& b) {
  const auto same = [](const TensorView& x, const TensorView& y) {
    return x.bytes() == y.bytes() &&
           std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())) == 0;
  };
  EXPECT_TRUE(same(a.tensors().data, b.tensors().data));
  EXPECT_TRUE(same(a.tensors().scale, b.tensors().scale));
}

class KbitImageBits : public testing::TestWithParam<int> {};

TEST_P(KbitImageBits, EveryShapeComesBack) {
  const int bits = GetParam();
  Rng rng(static_cast<uint64_t>(bits));
  for (const Codebook& book : {nf_codebook(bits), bnf_codebook(bits), lopsided(bits)}) {
    for (const int64_t n : {1, 16, 63, 64, 65, 200}) {
      for (const int64_t k : {32, 96, 256, 512, 544}) {
        const Flat weight(n, k, book, rng), back(n, k, book, rng);
        const KbitImage image = kbit_image(weight.view);
        EXPECT_EQ(image.sign_magnitude, book.antisymmetric());
        const ImageTensors out = back.tensors();
        unpack(image, pack(image, {&weight.view, 1}), {&out, 1});
        expect_same(weight, back);
      }
    }
  }
}

TEST_P(KbitImageBits, GateAndUpComeBack) {
  const int bits = GetParam();
  Rng rng(static_cast<uint64_t>(10 + bits));
  for (const int64_t n : {8, 32, 40, 128}) {
    const Codebook book = bnf_codebook(bits);
    const Flat gate(n, 288, book, rng), up(n, 288, book, rng);
    const Flat gate_back(n, 288, book, rng), up_back(n, 288, book, rng);
    const KbitImage image = kbit_image(gate.view, up.view);
    EXPECT_EQ(image.n, 2 * n);
    const WeightView both[] = {gate.view, up.view};
    const ImageTensors out[] = {gate_back.tensors(), up_back.tensors()};
    unpack(image, pack(image, both), out);
    expect_same(gate, gate_back);
    expect_same(up, up_back);
  }
}

TEST_P(KbitImageBits, NoByteMoreThanTheFlatLayout) {
  Rng rng(1);
  const Flat weight(192, 1024, nf_codebook(GetParam()), rng);
  EXPECT_EQ(kbit_image(weight.view).bytes(), weight.view.bytes());
}

TEST_P(KbitImageBits, EveryBitOfALaneIsUsedOnce) {
  const int bits = GetParam();
  std::set<std::pair<int, int>> used;
  for (int e = 0; e < KbitImage::kLaneCodes; ++e) {
    for (int b = 0; b < bits; ++b) {
      uint8_t codes[KbitImage::kLaneCodes] = {}, back[KbitImage::kLaneCodes];
      codes[e] = static_cast<uint8_t>(1 << b);
      uint32_t words[kMaxKbit];
      pack_kbit_lane(codes, bits, words);
      unpack_kbit_lane(words, bits, back);
      EXPECT_TRUE(std::equal(codes, codes + KbitImage::kLaneCodes, back));
      int total = 0;
      for (int w = 0; w < bits; ++w) {
        total += std::popcount(words[w]);
        if (words[w] != 0) used.insert({w, std::countr_zero(words[w])});
      }
      EXPECT_EQ(total, 1);
    }
  }
  EXPECT_EQ(static_cast<int>(used.size()), 32 * bits);
}

// What the kernels call: nibbles, and signs where they lie apart.
TEST_P(KbitImageBits, NibblesAndSignsAreTheCodes) {
  const int bits = GetParam();
  Rng rng(static_cast<uint64_t>(40 + bits));
  uint8_t codes[KbitImage::kLaneCodes];
  for (uint8_t& code : codes) code = static_cast<uint8_t>(rng.below(1 << bits));
  uint32_t words[kMaxKbit];
  pack_kbit_lane(codes, bits, words);
  for (int e = 0; e < KbitImage::kLaneCodes; ++e) {
    const int i = e / 8, q = e % 8;
    uint32_t code = (kbit_nibbles(words, bits, i) >> (4 * q)) & 15u;
    if (bits >= 4)
      code |= (kbit_signs(words, bits, i, q / 2) >> (15 + 16 * (q % 2)) & 1u) << (bits - 1);
    EXPECT_EQ(code, codes[e]) << e;
    if (bits != 4) continue;
    const uint32_t sign = kbit_byte_signs(words, i, q / 4) >> (8 * (q % 4) + 7);
    EXPECT_EQ(sign & 1u, uint32_t{codes[e]} >> 3) << e;
  }
}

TEST_P(KbitImageBits, SignMagnitudeKeepsTheValue) {
  const int bits = GetParam(), top = 1 << (bits - 1);
  const Codebook book = nf_codebook(bits);
  for (int c = 0; c < book.size(); ++c) {
    const auto code = static_cast<uint8_t>(c);
    const uint8_t sm = kbit_to_sign_magnitude(code, bits);
    EXPECT_EQ(kbit_from_sign_magnitude(sm, bits), code);
    const float magnitude = book.value[static_cast<size_t>(top + (sm & (top - 1)))];
    EXPECT_EQ(book.value[code], (sm & top) != 0 ? -magnitude : magnitude);
  }
}

// mma.sync m16n8k16 as in the PTX ISA: which lane holds which element of A (registers a0-a7 as
// halves), and which lane's accumulators are which elements of C.
struct MmaA {
  static int row(int lane, int i) { return lane / 4 + (i % 4 < 2 ? 0 : 8); }
  static int column(int lane, int i) { return lane % 4 * 2 + i % 2 + (i < 4 ? 0 : 8); }
};

// A GEMM of 16 rows by 8 tokens computed only from what the lanes hold.
TEST_P(KbitImageBits, FeedsTheTensorCoreFragments) {
  const int bits = GetParam();
  constexpr int64_t kRows = 128, kColumns = 512;
  Rng rng(static_cast<uint64_t>(20 + bits));
  const Codebook book = nf_codebook(bits);
  const Flat gate(kRows, kColumns, book, rng), up(kRows, kColumns, book, rng);
  const WeightView both[] = {gate.view, up.view};
  const KbitImage image = kbit_image(gate.view, up.view);
  const std::vector<uint8_t> bytes = pack(image, both);
  for (const int64_t u : {0, 5, 15}) {
    for (int64_t column = 0; column < kColumns; column += 16) {
      const int64_t unit = column / 256, step = column % 256 / 64, group = column % 64 / 16;
      const uint8_t* at = bytes.data() + image.unit_offset(u, unit);
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t words[kMaxKbit];
        for (int i = 0; i < bits; ++i) {
          std::memcpy(&words[i],
                      at + KbitImage::word_offset(lane, static_cast<int>(step) * bits + i), 4);
        }
        uint8_t codes[KbitImage::kLaneCodes];
        unpack_kbit_lane(words, bits, codes);
        for (int i = 0; i < 8; ++i) {
          const int row = MmaA::row(lane, i), q = i / 2 % 2 * 4 + i / 4 * 2 + i % 2;
          const int64_t k = column + MmaA::column(lane, i);
          const uint8_t scale = at[image.scale_offset(row, static_cast<int>(k % 256 / 32))];
          const float value =
              book.value[kbit_from_sign_magnitude(codes[group * 8 + q], bits)] * e4m4_to_f32(scale);
          // Rows 0-7 of a unit are gate's, 8-15 up's.
          const double want = weight_value(row < 8 ? gate.view : up.view, u * 8 + row % 8, k);
          ASSERT_EQ(value, static_cast<float>(want)) << u << ' ' << column << ' ' << lane;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(K, KbitImageBits, testing::Range(kMinKbit, kMaxKbit + 1));

class Fp4Image : public testing::TestWithParam<WeightFormat> {};

TEST_P(Fp4Image, EveryShapeComesBack) {
  Rng rng(1);
  for (const int64_t n : {1, 16, 63, 65, 200}) {
    for (const int64_t k : {32, 96, 256, 544}) {
      const Fp4 weight(GetParam(), n, k, rng), back(GetParam(), n, k, rng);
      const ImageTensors out = back.tensors();
      const KbitImage image = kbit_image(weight.view);
      unpack(image, pack(image, {&weight.view, 1}), {&out, 1});
      expect_same(weight, back);
    }
  }
  for (const int64_t n : {8, 40}) {
    const Fp4 gate(GetParam(), n, 288, rng), up(GetParam(), n, 288, rng);
    const Fp4 gate_back(GetParam(), n, 288, rng), up_back(GetParam(), n, 288, rng);
    const WeightView both[] = {gate.view, up.view};
    const ImageTensors out[] = {gate_back.tensors(), up_back.tensors()};
    const KbitImage image = kbit_image(gate.view, up.view);
    unpack(image, pack(image, both), out);
    expect_same(gate, gate_back);
    expect_same(up, up_back);
  }
}

TEST_P(Fp4Image, NoByteMoreThanTheFile) {
  Rng rng(1);
  const Fp4 weight(GetParam(), 192, 1024, rng);
  EXPECT_EQ(kbit_image(weight.view).bytes(), weight.view.bytes());
}

// Code and scale of every element, by the map of the header, are the file's: the code is sign and
// magnitude index of the codebook, the scale a byte of the element's block.
TEST_P(Fp4Image, HoldsTheCodesAndScalesOfTheFile) {
  Rng rng(2);
  const Fp4 weight(GetParam(), 32, 512, rng);
  const KbitImage image = kbit_image(weight.view);
  const Codebook book = image_codebook(weight.view);
  const std::vector<uint8_t> bytes = pack(image, {&weight.view, 1});
  const int block = block_columns(image.scale);
  for (int lane = 0; lane < KbitImage::kLanes; ++lane) {
    for (int64_t at = 0; at < 2 * 512; at += KbitImage::kStepColumns) {
      const int64_t strip = at / 512, column = at % 512;
      const uint8_t* unit = bytes.data() + image.unit_offset(strip, column / 256);
      const int step = static_cast<int>(column % 256) / KbitImage::kStepColumns;
      uint32_t words[4];
      for (int i = 0; i < 4; ++i)
        std::memcpy(&words[i], unit + KbitImage::word_offset(lane, 4 * step + i), 4);
      uint8_t codes[KbitImage::kLaneCodes];
      unpack_kbit_lane(words, 4, codes);
      for (int e = 0; e < KbitImage::kLaneCodes; ++e) {
        const KbitFragment place = kbit_fragment(lane, e);
        const int64_t row = 16 * strip + place.row, k = column + place.column;
        const float want = e2m1_to_f32(
            e2m1_code(weight.pairs.view().row<uint8_t>(row)[k / 2], static_cast<int>(k % 2)));
        ASSERT_EQ(std::bit_cast<uint32_t>(book.value[kbit_from_sign_magnitude(codes[e], 4)]),
                  std::bit_cast<uint32_t>(want));
        ASSERT_EQ(unit[image.scale_offset(place.row, static_cast<int>(k % 256) / block)],
                  weight.scale.view().row<uint8_t>(row)[k / block]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp4Image,
                         testing::Values(WeightFormat::kMxfp4, WeightFormat::kNvfp4));

TEST(KbitImage, ReportsWhatDoesNotFit) {
  Rng rng(1);
  const Flat a(16, 64, nf_codebook(3), rng), b(16, 64, bnf_codebook(3), rng),
      c(12, 64, nf_codebook(3), rng);
  EXPECT_NE(test::error_of([&] { kbit_image(a.view, b.view); }).find("differ in shape"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { kbit_image(c.view, c.view); }).find("groups of 8"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { kbit_image({.format = WeightFormat::kF32}); }), "");
  const Fp4 narrow(WeightFormat::kNvfp4, 8, 48, rng);
  EXPECT_NE(test::error_of([&] { kbit_image(narrow.view); }).find("48 columns"), std::string::npos);
  const KbitImage image = kbit_image(a.view);
  std::vector<uint8_t> bytes(static_cast<size_t>(image.strip_bytes() - 1));
  EXPECT_NE(test::error_of([&] {
              pack_kbit_strip(image, {&a.view, 1}, 0, bytes);
            }).find("bytes"),
            std::string::npos);
  bytes.push_back(0);
  EXPECT_NE(test::error_of([&] {
              pack_kbit_strip(image, {&a.view, 1}, 1, bytes);
            }).find("strip 1"),
            std::string::npos);
}

}  // namespace
}  // namespace dsv4
