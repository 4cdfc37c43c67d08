#include "dsv4/convert/convert_weight.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/convert/fp8_blocks.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/kbit/import_mxfp4.h"
#include "dsv4/ops/kbit/quantize_fp4.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4 {
namespace {

constexpr int64_t kCopyBytes = int64_t{16} << 20;

std::span<const std::byte> bytes_of(const ConstTensorView& view) {
  return {view.data, static_cast<size_t>(view.bytes())};
}

// The common case, decided from the scales alone: they span at most 19 powers of two, none near the
// ends of f32. import_mxfp4 decides the rest (scales of all-zero blocks do not count there).
bool scales_surely_fit(const WeightView& source) {
  constexpr uint8_t kLeast = 27, kMost = 227;
  uint8_t least = 255, most = 0;
  for (int64_t row = 0; row < source.n; ++row) {
    const uint8_t* scales = source.scale.row<uint8_t>(row);
    const auto [low, high] = std::minmax_element(scales, scales + source.k / kMxfp4Group);
    least = std::min(least, *low);
    most = std::max(most, *high);
  }
  return least >= kLeast && most <= kMost && most - least <= 18;
}

// Writes the last two tensors of a k-bit item.
void write_tables(const Codebook& book, float scale2, const PieceSink& sink) {
  sink.write(2, 0, std::as_bytes(book.values()));
  sink.write(3, 0, std::as_bytes(std::span(&scale2, 1)));
}

}  // namespace

void copy_tensor(const ConstTensorView& view, size_t tensor, const PieceSink& sink) {
  DSV4_CHECK(view.is_contiguous(), "{} is not contiguous", to_string(view));
  for (int64_t begin = 0; begin < view.bytes(); begin += kCopyBytes) {
    const int64_t bytes = std::min(kCopyBytes, view.bytes() - begin);
    sink.write(tensor, begin, {view.data + begin, static_cast<size_t>(bytes)});
    sink.consumed(bytes);
  }
}

// A multiple of 128 rows, so that pieces hold whole rows of fp8 blocks.
int64_t WeightConverter::rows_per_piece(int64_t k) const {
  return std::max<int64_t>(piece_elements_ / k / kFp8BlockSize, 1) * kFp8BlockSize;
}

TensorView WeightConverter::scratch(Buffer* buffer, DType dtype,
                                    std::initializer_list<int64_t> shape) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  if (buffer->empty() || buffer->view().bytes() < meta.bytes())
    *buffer = Buffer(DType::kU8, {meta.bytes()});
  return {meta, buffer->view().data};
}

// The rows as f32. A weight of a single piece is read twice but widened once.
ConstTensorView WeightConverter::floats(const WeightView& source, Rows rows) {
  const int64_t n = rows.end - rows.begin;
  first_row_ = rows.begin;
  const WeightView part = source.rows(rows.begin, rows.end);
  const TensorView x = scratch(&x_, DType::kF32, {n, source.k});
  if (loaded_ == part.data.data && loaded_rows_ == n) return x;
  dequantize({}, {.weight = part, .out = x});
  loaded_ = part.data.data;
  loaded_rows_ = n;
  return x;
}

float WeightConverter::largest(const WeightView& source) {
  float most = 0;
  const int64_t step = rows_per_piece(source.k);
  for (int64_t row = 0; row < source.n; row += step) {
    const Rows rows{row, std::min(row + step, source.n)};
    most = std::max(most, largest_magnitude(floats(source, rows)));
  }
  return most;
}

WeightView WeightConverter::kbit(const OutputItem& item, const ConstTensorView& x,
                                 const ConvertChoice& choice, float tensor_scale) {
  const int64_t n = x.dim(0), blocks = item.k / kKbitBlock;
  const int bits = item.target.bits;
  const TensorView planes = scratch(&codes_, DType::kI32, {n, blocks * bits});
  const TensorView scales = scratch(&scales_, DType::kU8, {n, blocks});
  quantize_kbit({}, {.x = x,
                     .codebook = choice.codebook,
                     .choice = choice.scales,
                     .importance = choice.importance,
                     .tensor_scale = tensor_scale,
                     .planes = planes,
                     .scales = scales});
  return {.format = WeightFormat::kKbit,
          .n = n,
          .k = item.k,
          .data = planes,
          .scale = scales,
          .scale2 = tensor_scale,
          .bits = bits,
          .codebook = {TensorMeta::contiguous(DType::kF32, {choice.codebook.size()}),
                       reinterpret_cast<const std::byte*>(choice.codebook.value.data())}};
}

WeightView WeightConverter::fp4(const OutputItem& item, const ConstTensorView& x,
                                const ConvertChoice& choice, float tensor_scale) {
  const bool mx = item.target.kind == Target::Kind::kMxfp4;
  const int64_t n = x.dim(0), group = mx ? kMxfp4Group : kNvfp4Group;
  const TensorView pairs = scratch(&codes_, DType::kU8, {n, item.k / 2});
  const TensorView scales =
      scratch(&scales_, mx ? DType::kE8M0 : DType::kE4M3, {n, item.k / group});
  const WeightFormat format = mx ? WeightFormat::kMxfp4 : WeightFormat::kNvfp4;
  quantize_fp4({}, {.format = format,
                    .x = x,
                    .importance = choice.importance,
                    .searched = choice.scales == ScaleChoice::kSearched,
                    .scale2 = tensor_scale,
                    .pairs = pairs,
                    .scales = scales});
  return {.format = format,
          .n = n,
          .k = item.k,
          .data = pairs,
          .scale = scales,
          .scale2 = tensor_scale};
}

WeightView WeightConverter::fp8(const ConstTensorView& x) {
  const int64_t n = x.dim(0), k = x.dim(1);
  const TensorView codes = scratch(&codes_, DType::kE4M3, {n, k});
  const TensorView scales =
      scratch(&scales_, DType::kE8M0, {ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize)});
  quantize_fp8_blocks({.x = x, .codes = codes, .scales = scales});
  return {.format = WeightFormat::kFp8Block, .n = n, .k = k, .data = codes, .scale = scales};
}

WeightView WeightConverter::bf16(const ConstTensorView& x) {
  const TensorView out = scratch(&codes_, DType::kBF16, {x.dim(0), x.dim(1)});
  round_rows_to_bf16(x, out);
  return {.format = WeightFormat::kBF16, .n = x.dim(0), .k = x.dim(1), .data = out};
}

WeightError WeightConverter::quantize(const WeightView& source, const OutputItem& item,
                                      const ConvertChoice& choice, const PieceSink& sink) {
  const bool is_kbit = item.target.kind == Target::Kind::kKbit;
  const bool is_nvfp4 = item.target.kind == Target::Kind::kNvfp4;
  const float scale2 = is_kbit    ? choose_tensor_scale(largest(source))
                       : is_nvfp4 ? nvfp4_tensor_scale(largest(source))
                                  : 1.f;
  const int64_t step = rows_per_piece(source.k);
  WeightError error;
  int64_t data_bytes = 0, scale_bytes = 0;
  for (int64_t row = 0; row < source.n; row += step) {
    const Rows rows{row, std::min(row + step, source.n)};
    const ConstTensorView x = floats(source, rows);
    const WeightView y = is_kbit                                  ? kbit(item, x, choice, scale2)
                         : is_fp4(item.target)                    ? fp4(item, x, choice, scale2)
                         : item.target.kind == Target::Kind::kFp8 ? fp8(x)
                                                                  : bf16(x);
    const TensorView seen = scratch(&y_, DType::kF32, {y.n, y.k});
    dequantize({}, {.weight = y, .out = seen});
    error.add(x, seen, choice.importance);
    sink.write(0, data_bytes, bytes_of(y.data));
    data_bytes += y.data.bytes();
    if (!y.scale.empty()) sink.write(1, scale_bytes, bytes_of(y.scale));
    scale_bytes += y.scale.empty() ? 0 : y.scale.bytes();
    sink.consumed(item.source_bytes * rows.end / source.n - item.source_bytes * row / source.n);
  }
  if (choice.scales == ScaleChoice::kSearched && (is_kbit || is_nvfp4)) error.correct_gain();
  const auto gained = static_cast<float>(static_cast<double>(scale2) * error.gain);
  if (is_kbit) write_tables(choice.codebook, gained, sink);
  const float global = 1 / gained;  // as files have it (file_tensor)
  if (is_nvfp4) sink.write(2, 0, std::as_bytes(std::span(&global, 1)));
  return error;
}

WeightError WeightConverter::import(const WeightView& source, const OutputItem& item,
                                    const PieceSink& sink) {
  const int64_t blocks = item.k / kKbitBlock;
  const TensorView planes = scratch(&codes_, DType::kI32, {item.n, blocks * item.target.bits});
  const TensorView scales = scratch(&scales_, DType::kU8, {item.n, blocks});
  const ImportMxfp4Result result =
      import_mxfp4({.weight = source, .planes = planes, .scales = scales});
  DSV4_CHECK(result.fits(), "{} does not fit: import_obstacle() was not checked", item.name);
  sink.write(0, 0, bytes_of(planes));
  sink.write(1, 0, bytes_of(scales));
  write_tables(e2m1_codebook(), result.tensor_scale, sink);
  sink.consumed(item.source_bytes);
  return {};
}

WeightError WeightConverter::convert(const WeightView& source, const OutputItem& item,
                                     const ConvertChoice& choice, const PieceSink& sink) {
  DSV4_CHECK(item.converted(), "{} is not converted", item.name);
  loaded_ = nullptr;
  try {
    if (item.lossless_import()) return import(source, item, sink);
    return quantize(source, item, choice, sink);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kBadInput) throw;
    fail(e.code(), "{}, in the piece from row {}: {}", item.name, first_row_, e.what());
  }
}

std::string WeightConverter::import_obstacle(const WeightView& source) {
  if (scales_surely_fit(source)) return "";
  const int64_t blocks = source.k / kMxfp4Group;
  const ImportMxfp4Result result =
      import_mxfp4({.weight = source,
                    .planes = scratch(&codes_, DType::kI32, {source.n, blocks * 4}),
                    .scales = scratch(&scales_, DType::kU8, {source.n, blocks})});
  if (result.blocks_nan > 0) return fmt::format("{} scales are NaN", result.blocks_nan);
  if (!result.fits())
    return fmt::format("scales from 2^{} to 2^{} span more than the 18 octaves of E4M4",
                       result.smallest_exponent, result.largest_exponent);
  return "";
}

}  // namespace dsv4
