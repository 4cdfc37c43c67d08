#include "dsv4/convert/convert_weight.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/convert/fp8_blocks.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/kbit/import_mxfp4.h"
#include "dsv4/ops/kbit/quantize_fp4.h"
#include "dsv4/ops/kbit/row_errors.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4 {
namespace {

constexpr int64_t kCopyBytes = int64_t{16} << 20;
constexpr int32_t kNoBlock = std::numeric_limits<int32_t>::max();

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
    *buffer = Buffer(DType::kU8, {meta.bytes()}, room_->memory());
  return {meta, buffer->view().data};
}

bool WeightConverter::on_gpu(const OutputItem& item) {
  return item.searched();
}

WeightView WeightConverter::bring(const WeightView& rows) {
  WeightView there = rows;
  there.data = room_->bring(ConvertRoom::kData, rows.data);
  if (!rows.scale.empty()) there.scale = room_->bring(ConvertRoom::kScale, rows.scale);
  if (!rows.codebook.empty()) there.codebook = room_->bring(ConvertRoom::kCodebook, rows.codebook);
  return there;
}

// The rows as f32. A weight of a single piece is read twice but widened once.
ConstTensorView WeightConverter::floats(const WeightView& source, Rows rows) {
  const int64_t n = rows.end - rows.begin;
  first_row_ = rows.begin;
  const WeightView part = source.rows(rows.begin, rows.end);
  const TensorView x = scratch(&x_, DType::kF32, {n, source.k});
  if (loaded_ == part.data.data && loaded_rows_ == n) return x;
  dequantize(room_->context(), {.weight = bring(part), .out = x});
  loaded_ = part.data.data;
  loaded_rows_ = n;
  return x;
}

float WeightConverter::largest(const WeightView& source) {
  float most = 0;
  const int64_t step = rows_per_piece(source.k);
  for (int64_t row = 0; row < source.n; row += step) {
    const Rows rows{row, std::min(row + step, source.n)};
    most = std::max(most, room_->largest(floats(source, rows)));
  }
  return most;
}

TensorView WeightConverter::watch_values() {
  const TensorView first_bad = scratch(&first_bad_, DType::kI32, {1});
  room_->memory().upload(first_bad.data, reinterpret_cast<const std::byte*>(&kNoBlock),
                         sizeof kNoBlock);
  return first_bad;
}

void WeightConverter::check_values(const TensorView& first_bad) {
  int32_t bad = 0;
  std::memcpy(&bad, room_->fetch(first_bad).data(), sizeof bad);
  if (bad != kNoBlock) fail(ErrorCode::kBadInput, "a value of block {} is refused", bad);
}

WeightView WeightConverter::kbit(const OutputItem& item, const ConstTensorView& x,
                                 const ConvertChoice& choice, float tensor_scale) {
  const int64_t n = x.dim(0), blocks = item.k / kKbitBlock;
  const int bits = item.target.bits;
  const TensorView planes = scratch(&codes_, DType::kI32, {n, blocks * bits});
  const TensorView scales = scratch(&scales_, DType::kU8, {n, blocks});
  const TensorView first_bad = watch_values();
  quantize_kbit(room_->context(), {.x = x,
                                   .codebook = choice.codebook,
                                   .choice = choice.scales,
                                   .importance = choice.importance,
                                   .tensor_scale = tensor_scale,
                                   .planes = planes,
                                   .scales = scales,
                                   .first_bad = first_bad});
  check_values(first_bad);
  const ConstTensorView book{TensorMeta::contiguous(DType::kF32, {choice.codebook.size()}),
                             reinterpret_cast<const std::byte*>(choice.codebook.value.data())};
  return {.format = WeightFormat::kKbit,
          .n = n,
          .k = item.k,
          .data = planes,
          .scale = scales,
          .scale2 = tensor_scale,
          .bits = bits,
          .codebook = room_->bring(ConvertRoom::kCodebook, book)};
}

WeightView WeightConverter::fp4(const OutputItem& item, const ConstTensorView& x,
                                const ConvertChoice& choice, float tensor_scale) {
  const bool mx = item.target.kind == Target::Kind::kMxfp4;
  const int64_t n = x.dim(0), group = mx ? kMxfp4Group : kNvfp4Group;
  const TensorView pairs = scratch(&codes_, DType::kU8, {n, item.k / 2});
  const TensorView scales =
      scratch(&scales_, mx ? DType::kE8M0 : DType::kE4M3, {n, item.k / group});
  const WeightFormat format = mx ? WeightFormat::kMxfp4 : WeightFormat::kNvfp4;
  const TensorView first_bad = watch_values();
  quantize_fp4(room_->context(), {.format = format,
                                  .x = x,
                                  .importance = choice.importance,
                                  .searched = choice.scales == ScaleChoice::kSearched,
                                  .scale2 = tensor_scale,
                                  .pairs = pairs,
                                  .scales = scales,
                                  .first_bad = first_bad});
  check_values(first_bad);
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

void WeightConverter::add_error(const ConstTensorView& x, const WeightView& y,
                                const ConstTensorView& importance, WeightError& error) {
  const TensorView seen = scratch(&y_, DType::kF32, {y.n, y.k});
  const TensorView sums = scratch(&sums_, DType::kF64, {y.n, kErrorSums});
  dequantize(room_->context(), {.weight = y, .out = seen});
  row_errors(room_->context(), {.x = x, .y = seen, .importance = importance, .sums = sums});
  error.add_sums({sums, room_->fetch(sums).data()});
}

WeightError WeightConverter::quantize(const WeightView& source, const OutputItem& item,
                                      const ConvertChoice& wanted, const PieceSink& sink) {
  ConvertChoice choice = wanted;
  if (!choice.importance.empty())
    choice.importance = room_->bring(ConvertRoom::kImportance, wanted.importance);
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
    add_error(x, y, choice.importance, error);
    sink.write(0, data_bytes, room_->fetch(y.data));
    data_bytes += y.data.bytes();
    if (!y.scale.empty()) sink.write(1, scale_bytes, room_->fetch(y.scale));
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
  sink.write(0, 0, room_->fetch(planes));
  sink.write(1, 0, room_->fetch(scales));
  write_tables(e2m1_codebook(), result.tensor_scale, sink);
  sink.consumed(item.source_bytes);
  return {};
}

WeightError WeightConverter::copy(const WeightView& source, const PieceSink& sink) {
  copy_tensor(source.data, 0, sink);
  copy_tensor(source.scale, 1, sink);
  return {};
}

WeightError WeightConverter::convert(const WeightView& source, const OutputItem& item,
                                     const ConvertChoice& choice, const PieceSink& sink) {
  DSV4_CHECK(item.converted(), "{} is not converted", item.name);
  loaded_ = nullptr;
  try {
    if (item.lossless_import()) return import(source, item, sink);
    if (item.renamed()) return copy(source, sink);
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
