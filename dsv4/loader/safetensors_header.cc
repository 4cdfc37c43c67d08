#include "dsv4/loader/safetensors_header.h"

#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {

std::string HeaderReader::place() const {
  std::string text = "header";
  if (at_ > At::kTop || !name_.empty()) text += ": " + quotable(name_);
  if (at_ > At::kTop && !key_.empty()) text += ": " + quotable(key_);
  return text;
}

bool HeaderReader::start_object(size_t) {
  if (at_ == At::kStart) {
    at_ = At::kTop;
  } else if (at_ == At::kTop && name_ == "__metadata__") {
    at_ = At::kMetadata;
  } else if (at_ == At::kTop) {
    at_ = At::kTensor;
    entries.push_back({.name = name_});
    field_ = kNone;
    seen_ = 0;
    num_offsets_ = 0;
  } else {
    unexpected("an object");
  }
  key_.clear();
  return true;
}

bool HeaderReader::key(string_t& text) {
  if (at_ == At::kTop) {
    tensor_name(text);
  } else if (at_ == At::kMetadata) {
    key_ = text;
    if (metadata.count(key_) != 0) unexpected("a second value");
  } else {
    field(text);
  }
  return true;
}

void HeaderReader::tensor_name(const std::string& name) {
  name_ = name;
  if (name == "__metadata__") {
    if (have_metadata_) unexpected("a second __metadata__");
    have_metadata_ = true;
    return;
  }
  if (name.empty() || name.size() > kMaxTensorName)
    fail(ErrorCode::kBadInput, "{}: tensor name '{}' has {} bytes, allowed are 1 to {}", what(),
         quotable(name), name.size(), kMaxTensorName);
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      fail(ErrorCode::kBadInput, "{}: tensor name '{}' holds a control character", what(),
           quotable(name));
  }
}

void HeaderReader::field(const std::string& name) {
  key_ = name;
  field_ = name == "dtype"          ? kDtype
           : name == "shape"        ? kShapeField
           : name == "data_offsets" ? kOffsetsField
                                    : kNone;
  if (field_ == kNone) unexpected("this field");
  if ((seen_ & field_) != 0) unexpected("a second value");
  seen_ |= field_;
}

bool HeaderReader::end_object() {
  if (at_ == At::kTensor && seen_ != kAll) {
    fail(ErrorCode::kBadInput, "{}: header: {}: no {}", what(), quotable(name_),
         (seen_ & kDtype) == 0        ? "dtype"
         : (seen_ & kShapeField) == 0 ? "shape"
                                      : "data_offsets");
  }
  at_ = At::kTop;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (at_ != At::kTensor || (field_ != kShapeField && field_ != kOffsetsField))
    unexpected("an array");
  at_ = field_ == kShapeField ? At::kShape : At::kOffsets;
  return true;
}

bool HeaderReader::end_array() {
  if (at_ == At::kOffsets && num_offsets_ != 2) unexpected("a list of other than 2 numbers");
  at_ = At::kTensor;
  return true;
}

bool HeaderReader::string(string_t& text) {
  if (at_ == At::kMetadata) {
    metadata.emplace(key_, std::move(text));
  } else if (at_ == At::kTensor && field_ == kDtype) {
    if (!parse_dtype(text, &tensor().dtype))
      fail(ErrorCode::kBadInput, "{}: {}: unknown dtype '{}'", what(), quotable(name_),
           quotable(text));
  } else {
    unexpected("a string");
  }
  return true;
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (at_ == At::kShape) {
    if (tensor().rank == kMaxRank) unexpected(fmt::format("a rank above {}", kMaxRank));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      unexpected(fmt::format("an extent of {}", value));
    tensor().shape[static_cast<size_t>(tensor().rank++)] = static_cast<int64_t>(value);
  } else if (at_ == At::kOffsets) {
    if (num_offsets_ == 2) unexpected("a third number");
    tensor().offsets[num_offsets_++] = value;
  } else {
    unexpected("a number");
  }
  return true;
}

}  // namespace dsv4
