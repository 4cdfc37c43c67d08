#include "dsv4/formats/pack_kbit_image.h"

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/formats/e2m1.h"

namespace dsv4 {
namespace {

constexpr int kMaxUnitBlocks = KbitImage::kUnitColumns / block_columns(ImageScale::kE4M3);

// The source of row `row` of the image: the same row of the only weight, or a row of gate or up,
// which alternate in groups of 8.
struct SourceRow {
  size_t weight;
  int64_t row;
};
SourceRow source_row(int64_t row, size_t num_weights) {
  if (num_weights == 1) return {0, row};
  return {static_cast<size_t>(row % 16 / 8), row / 16 * 8 + row % 8};
}

// The codes and scales of one unit, with rows and columns in natural order and zeros as padding.
struct Unit {
  uint8_t codes[KbitImage::kUnitRows][KbitImage::kUnitColumns] = {};
  uint8_t scales[KbitImage::kUnitRows][kMaxUnitBlocks] = {};
};

// The part of a unit, from `column` on, that exists.
struct UnitColumns {
  int64_t first_block, blocks, columns;

  UnitColumns(const KbitImage& image, int64_t column)
      : columns(std::min<int64_t>(KbitImage::kUnitColumns, image.k - column)) {
    const int block = block_columns(image.scale);
    first_block = column / block, blocks = columns / block;
  }
};

void load_row(const KbitImage& image, const WeightView& w, int64_t row, int64_t column,
              uint8_t* codes, uint8_t* scales) {
  const UnitColumns part(image, column);
  std::copy_n(w.scale.row<uint8_t>(row) + part.first_block, part.blocks, scales);
  if (image.is_fp4()) {
    const uint8_t* pairs = w.data.row<uint8_t>(row) + column / 2;
    for (int i = 0; i < part.columns; ++i) codes[i] = e2m1_code(pairs[i / 2], i);
    return;
  }
  const uint32_t* planes = w.data.row<uint32_t>(row) + part.first_block * image.bits;
  for (int64_t b = 0; b < part.blocks; ++b, planes += image.bits) {
    for (int i = 0; i < kKbitBlock; ++i) {
      const uint8_t code = kbit_code(planes, image.bits, i);
      codes[b * kKbitBlock + i] =
          image.sign_magnitude ? kbit_to_sign_magnitude(code, image.bits) : code;
    }
  }
}

void store_row(const KbitImage& image, const ImageTensors& w, int64_t row, int64_t column,
               const uint8_t* codes, const uint8_t* scales) {
  const UnitColumns part(image, column);
  std::copy_n(scales, part.blocks, w.scale.row<uint8_t>(row) + part.first_block);
  if (image.is_fp4()) {
    uint8_t* pairs = w.data.row<uint8_t>(row) + column / 2;
    for (int i = 0; i < part.columns; i += 2) pairs[i / 2] = e2m1_pair(codes[i], codes[i + 1]);
    return;
  }
  uint32_t* planes = w.data.row<uint32_t>(row) + part.first_block * image.bits;
  for (int64_t b = 0; b < part.blocks; ++b, planes += image.bits) {
    uint8_t block[kKbitBlock];
    for (int i = 0; i < kKbitBlock; ++i) {
      const uint8_t code = codes[b * kKbitBlock + i];
      block[i] = image.sign_magnitude ? kbit_from_sign_magnitude(code, image.bits) : code;
    }
    pack_kbit_block(block, image.bits, planes);
  }
}

void write_unit(const KbitImage& image, const Unit& unit, uint8_t* bytes) {
  for (int step = 0; step < KbitImage::kSteps; ++step) {
    for (int lane = 0; lane < KbitImage::kLanes; ++lane) {
      uint8_t codes[KbitImage::kLaneCodes];
      for (int e = 0; e < KbitImage::kLaneCodes; ++e) {
        const KbitFragment at = kbit_fragment(lane, e);
        codes[e] = unit.codes[at.row][step * KbitImage::kStepColumns + at.column];
      }
      uint32_t words[kMaxKbit];
      pack_kbit_lane(codes, image.bits, words);
      for (int i = 0; i < image.bits; ++i)
        std::memcpy(bytes + KbitImage::word_offset(lane, step * image.bits + i), &words[i], 4);
    }
  }
  for (int row = 0; row < KbitImage::kUnitRows; ++row) {
    for (int b = 0; b < image.unit_blocks(); ++b)
      bytes[image.scale_offset(row, b)] = unit.scales[row][b];
  }
}

void read_unit(const KbitImage& image, const uint8_t* bytes, Unit& unit) {
  for (int step = 0; step < KbitImage::kSteps; ++step) {
    for (int lane = 0; lane < KbitImage::kLanes; ++lane) {
      uint32_t words[kMaxKbit];
      for (int i = 0; i < image.bits; ++i)
        std::memcpy(&words[i], bytes + KbitImage::word_offset(lane, step * image.bits + i), 4);
      uint8_t codes[KbitImage::kLaneCodes];
      unpack_kbit_lane(words, image.bits, codes);
      for (int e = 0; e < KbitImage::kLaneCodes; ++e) {
        const KbitFragment at = kbit_fragment(lane, e);
        unit.codes[at.row][step * KbitImage::kStepColumns + at.column] = codes[e];
      }
    }
  }
  for (int row = 0; row < KbitImage::kUnitRows; ++row) {
    for (int b = 0; b < image.unit_blocks(); ++b)
      unit.scales[row][b] = bytes[image.scale_offset(row, b)];
  }
}

// Calls visit(offset of the unit in the strip in bytes, first row, first column) for each unit.
template <class Visit>
void for_each_unit(const KbitImage& image, int64_t strip, const Visit& visit) {
  for (int64_t c = 0; c < image.units_along_k(); ++c) {
    visit(image.unit_offset(0, c), strip * KbitImage::kUnitRows, c * KbitImage::kUnitColumns);
  }
}

void check_strip(const KbitImage& image, size_t num_weights, int64_t strip, size_t bytes) {
  DSV4_CHECK(is_kbit(image.bits) && image.k % kKbitBlock == 0, "image of {} bits, k={}", image.bits,
             image.k);
  DSV4_CHECK(num_weights == 1 || (num_weights == 2 && image.n % 16 == 0),
             "{} weights of {} rows together", num_weights, image.n);
  DSV4_CHECK(strip >= 0 && strip < image.num_strips(), "strip {} of {}", strip, image.num_strips());
  DSV4_CHECK(static_cast<int64_t>(bytes) == image.strip_bytes(), "want {} bytes, got {}",
             image.strip_bytes(), bytes);
}

KbitImage fp4_image(const WeightView& weight) {
  DSV4_CHECK(weight.k % kKbitBlock == 0, "an image of {} columns, want a multiple of {}", weight.k,
             kKbitBlock);
  const bool mxfp4 = weight.format == WeightFormat::kMxfp4;
  return {.n = weight.n,
          .k = weight.k,
          .bits = 4,
          .sign_magnitude = true,
          .scale = mxfp4 ? ImageScale::kUe8m0 : ImageScale::kE4M3};
}

}  // namespace

Codebook image_codebook(const WeightView& weight) {
  if (weight.format != WeightFormat::kKbit) {
    Codebook book = e2m1_codebook();
    for (float& value : book.value) value *= 8;
    return book;
  }
  Codebook book{.bits = weight.bits};
  std::copy_n(weight.codebook.as<float>(), book.size(), book.value.begin());
  return book;
}

KbitImage image_shape(const WeightView& weight) {
  check("weight", weight);
  return image_of_format(weight);
}

KbitImage image_of_format(const WeightView& weight) {
  if (weight.format == WeightFormat::kMxfp4 || weight.format == WeightFormat::kNvfp4)
    return fp4_image(weight);
  DSV4_CHECK(weight.format == WeightFormat::kKbit, "an image of {} weights", name(weight.format));
  return {.n = weight.n, .k = weight.k, .bits = weight.bits};
}

KbitImage kbit_image(const WeightView& weight) {
  KbitImage image = image_shape(weight);
  if (!image.is_fp4()) image.sign_magnitude = image_codebook(weight).antisymmetric();
  return image;
}

KbitImage kbit_image(const WeightView& gate, const WeightView& up) {
  KbitImage image = kbit_image(gate);
  check("up", up);
  DSV4_CHECK(
      up.format == gate.format && up.n == gate.n && up.k == gate.k && up.bits == gate.bits &&
          image_codebook(up).value == image_codebook(gate).value,
      "gate [{}, {}] of {} bits and up [{}, {}] of {} bits differ in shape, bits or codebook",
      gate.n, gate.k, gate.bits, up.n, up.k, up.bits);
  DSV4_CHECK(gate.n % 8 == 0, "{} rows are not groups of 8", gate.n);
  image.n = 2 * gate.n;
  return image;
}

void pack_kbit_strip(const KbitImage& image, std::span<const WeightView> weights, int64_t strip,
                     std::span<uint8_t> bytes) {
  check_strip(image, weights.size(), strip, bytes.size());
  for_each_unit(image, strip, [&](int64_t offset, int64_t row, int64_t column) {
    Unit unit;
    for (int64_t r = 0; r < KbitImage::kUnitRows && row + r < image.n; ++r) {
      const SourceRow source = source_row(row + r, weights.size());
      load_row(image, weights[source.weight], source.row, column, unit.codes[r], unit.scales[r]);
    }
    write_unit(image, unit, bytes.data() + offset);
  });
}

void unpack_kbit_strip(const KbitImage& image, std::span<const uint8_t> bytes, int64_t strip,
                       std::span<const ImageTensors> weights) {
  check_strip(image, weights.size(), strip, bytes.size());
  for_each_unit(image, strip, [&](int64_t offset, int64_t row, int64_t column) {
    Unit unit;
    read_unit(image, bytes.data() + offset, unit);
    for (int64_t r = 0; r < KbitImage::kUnitRows && row + r < image.n; ++r) {
      const SourceRow source = source_row(row + r, weights.size());
      store_row(image, weights[source.weight], source.row, column, unit.codes[r], unit.scales[r]);
    }
  });
}

}  // namespace dsv4
