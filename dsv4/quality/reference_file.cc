#include "dsv4/quality/reference_file.h"

#include <charconv>

#include "dsv4/base/error.h"
#include "dsv4/loader/safetensors_layout.h"
#include "dsv4/model/batch.h"

namespace dsv4 {
namespace {

SafetensorsLayout layout_of(int64_t rows, int64_t vocab, int64_t num_ids,
                            const WindowOptions& options, const std::string& numerics) {
  const std::pair<std::string, TensorMeta> tensors[] = {
      {"logits", TensorMeta::contiguous(DType::kF32, {rows, vocab})},
      {"ids", TensorMeta::contiguous(DType::kI32, {num_ids})}};
  return layout_safetensors(tensors, {{"context", std::to_string(options.context)},
                                      {"stride", std::to_string(stride_of(options))},
                                      {"bos", std::to_string(options.bos)},
                                      {"numerics", numerics}});
}

ConstTensorView tensor_of(const SafetensorsFile& file, const std::string& name, DType dtype,
                          int rank) {
  const auto it = file.tensors().find(name);
  if (it == file.tensors().end() || it->second.dtype != dtype || it->second.rank != rank) {
    fail(ErrorCode::kBadInput,
         "{}: not a logits file: want logits F32 [rows, V] and ids I32 [T], {} is {}", file.path(),
         name, it == file.tensors().end() ? "missing" : to_string(it->second));
  }
  return it->second;
}

int64_t number_of(const SafetensorsFile& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  const std::string text = it == file.metadata().end() ? "" : it->second;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < -1 ||
      value > int64_t{1} << 30) {
    fail(ErrorCode::kBadInput, "{}: metadata {} is not a count", file.path(), key);
  }
  return value;
}

}  // namespace

ReferenceWriter::ReferenceWriter(const std::string& path, std::span<const int32_t> ids,
                                 const WindowOptions& options, int64_t rows, int64_t vocab,
                                 const std::string& numerics)
    : file_(path), rows_left_(rows), vocab_(vocab) {
  const auto num_ids = static_cast<int64_t>(ids.size());
  const SafetensorsLayout layout = layout_of(rows, vocab, num_ids, options, numerics);
  next_ = layout.offset[0];
  file_.write_at(0, std::as_bytes(std::span(layout.header)));
  file_.write_at(layout.offset[1], std::as_bytes(ids));
}

void ReferenceWriter::add(const ConstTensorView& logits) {
  expect("logits", logits, {DType::kF32}, {logits.dim(0), vocab_});
  rows_left_ -= logits.dim(0);
  DSV4_CHECK(rows_left_ >= 0 && logits.is_contiguous(), "{} rows too many", -rows_left_);
  file_.write_at(next_, {logits.data, static_cast<size_t>(logits.bytes())});
  next_ += logits.bytes();
}

void ReferenceWriter::finish() {
  DSV4_CHECK(rows_left_ == 0, "{} rows are missing", rows_left_);
  file_.commit();
}

ReferenceFile::ReferenceFile(const std::string& path)
    : file_(path), logits_(tensor_of(file_, "logits", DType::kF32, 2)) {
  const ConstTensorView ids = tensor_of(file_, "ids", DType::kI32, 1);
  ids_ = {ids.as<int32_t>(), static_cast<size_t>(ids.numel())};
  const bool every_position = file_.metadata().count("context") == 0;
  if (every_position) {
    options_ = {.context = ids.numel()};
  } else {
    const int64_t bos = number_of(file_, "bos");
    options_ = {.context = number_of(file_, "context"),
                .stride = number_of(file_, "stride"),
                .bos = static_cast<int32_t>(bos)};
  }
  try {
    check_token_ids(ids_, vocab());
    if (options_.bos >= 0) check_token_ids({&options_.bos, 1}, vocab());
    // The file also holds the logits of the last position, which predict nothing here.
    const int64_t rows = num_counted(split_windows(ids_, options_)) + (every_position ? 1 : 0);
    if (logits_.dim(0) != rows)
      fail(ErrorCode::kBadInput, "want logits of {} tokens, got {}", rows, logits_.dim(0));
  } catch (const Error& error) {
    fail(ErrorCode::kBadInput, "{}: {}", path, error.what());
  }
}

std::string ReferenceFile::numerics() const {
  const auto it = file_.metadata().find("numerics");
  return it == file_.metadata().end() ? "" : it->second;
}

ConstTensorView ReferenceFile::next(const Piece& piece) {
  const auto count = static_cast<int64_t>(piece.targets.size());
  DSV4_CHECK(row_ + count <= logits_.dim(0), "row {} of a file with {} rows", row_ + count,
             logits_.dim(0));
  row_ += count;
  file_.release_pages();  // of the earlier pieces
  return logits_.slice(0, row_ - count, row_);
}

}  // namespace dsv4
