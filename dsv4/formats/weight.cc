#include "dsv4/formats/weight.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"

namespace dsv4 {

const char* name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kFp8Block:
      return "fp8_block";
    case WeightFormat::kMxfp4:
      return "mxfp4";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    case WeightFormat::kKbit:
      return "kbit";
  }
  return "unknown";
}

WeightView WeightView::rows(int64_t begin, int64_t end) const {
  WeightView part = *this;
  part.n = end - begin;
  part.data = data.slice(0, begin, end);
  if (format == WeightFormat::kFp8Block) {
    const int64_t first = begin / kFp8BlockSize;
    const int64_t last = begin == end ? first : ceil_div(end, kFp8BlockSize);
    DSV4_CHECK(begin % kFp8BlockSize == 0 || last - first <= 1,
               "rows [{}, {}) cut {}-row scale blocks", begin, end, kFp8BlockSize);
    part.scale = scale.slice(0, first, last);
  } else if (!scale.empty()) {
    part.scale = scale.slice(0, begin, end);
  }
  return part;
}

void check(const char* what, const WeightView& weight) {
  const Dim n("n", weight.n), k("k", weight.k);
  Dim rows = n, columns = k;
  const auto grouped = [&](int group) {
    DSV4_CHECK(weight.k % group == 0, "{}: k={} is not a multiple of {}", what, weight.k, group);
    expect(what, weight.data, {DType::kI8, DType::kU8}, {rows, weight.k / 2});
  };
  switch (weight.format) {
    case WeightFormat::kF32:
      return expect(what, weight.data, {DType::kF32}, {rows, columns});
    case WeightFormat::kBF16:
      return expect(what, weight.data, {DType::kBF16}, {rows, columns});
    case WeightFormat::kF16:
      return expect(what, weight.data, {DType::kF16}, {rows, columns});
    case WeightFormat::kFp8Block:
      expect(what, weight.data, {DType::kE4M3}, {rows, columns});
      return expect(what, weight.scale, {DType::kE8M0, DType::kF32},
                    {ceil_div(weight.n, kFp8BlockSize), ceil_div(weight.k, kFp8BlockSize)});
    case WeightFormat::kMxfp4:
      grouped(kMxfp4Group);
      return expect(what, weight.scale, {DType::kE8M0}, {rows, weight.k / kMxfp4Group});
    case WeightFormat::kNvfp4:
      grouped(kNvfp4Group);
      return expect(what, weight.scale, {DType::kE4M3}, {rows, weight.k / kNvfp4Group});
    case WeightFormat::kKbit: {
      DSV4_CHECK(is_kbit(weight.bits), "{}: want 2 to 5 bits, got {}", what, weight.bits);
      DSV4_CHECK(weight.k % kKbitBlock == 0, "{}: k={} is not a multiple of {}", what, weight.k,
                 kKbitBlock);
      const int64_t blocks = weight.k / kKbitBlock;
      expect(what, weight.data, {DType::kI32}, {rows, blocks * weight.bits});
      expect(what, weight.codebook, {DType::kF32}, {int64_t{1} << weight.bits});
      return expect(what, weight.scale, {DType::kU8}, {rows, blocks});
    }
  }
}

namespace {

double fp8_scale(const WeightView& w, int64_t n, int64_t k) {
  const int64_t row = n / kFp8BlockSize, column = k / kFp8BlockSize;
  if (w.scale.dtype == DType::kF32) return static_cast<double>(w.scale.row<float>(row)[column]);
  return static_cast<double>(ue8m0_to_f32(w.scale.row<uint8_t>(row)[column]));
}

double e2m1_at(const WeightView& w, int64_t n, int64_t k) {
  const uint8_t pair = w.data.row<uint8_t>(n)[k / 2];
  return static_cast<double>(e2m1_to_f32(e2m1_code(pair, static_cast<int>(k & 1))));
}

double kbit_value(const WeightView& w, int64_t n, int64_t k) {
  const int64_t block = k / kKbitBlock;
  const uint32_t* planes = w.data.row<uint32_t>(n) + block * w.bits;
  const uint8_t code = kbit_code(planes, w.bits, static_cast<int>(k % kKbitBlock));
  return static_cast<double>(w.codebook.as<float>()[code]) *
         static_cast<double>(e4m4_to_f32(w.scale.row<uint8_t>(n)[block])) *
         static_cast<double>(w.scale2);
}

}  // namespace

double weight_value(const WeightView& w, int64_t n, int64_t k) {
  switch (w.format) {
    case WeightFormat::kF32:
      return static_cast<double>(w.data.row<float>(n)[k]);
    case WeightFormat::kBF16:
      return static_cast<double>(bf16_to_f32(w.data.row<uint16_t>(n)[k]));
    case WeightFormat::kF16:
      return static_cast<double>(f16_to_f32(w.data.row<uint16_t>(n)[k]));
    case WeightFormat::kFp8Block:
      return static_cast<double>(e4m3_to_f32(w.data.row<uint8_t>(n)[k])) * fp8_scale(w, n, k);
    case WeightFormat::kMxfp4:
      return e2m1_at(w, n, k) *
             static_cast<double>(ue8m0_to_f32(w.scale.row<uint8_t>(n)[k / kMxfp4Group]));
    case WeightFormat::kNvfp4:
      return e2m1_at(w, n, k) *
             static_cast<double>(e4m3_to_f32(w.scale.row<uint8_t>(n)[k / kNvfp4Group])) *
             static_cast<double>(w.scale2);
    case WeightFormat::kKbit:
      return kbit_value(w, n, k);
  }
  return 0;
}

}  // namespace dsv4
