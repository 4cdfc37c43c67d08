#include "dsv4/loader/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "dsv4/base/error.h"
#include "dsv4/loader/strict_json.h"

namespace dsv4 {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr size_t kLengthBytes = 8;

struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<uint64_t, 2> offsets{};
};

// The grammar of the header. Fills `entries` and `metadata`; what the numbers mean is checked
// later.
class HeaderReader final : public StrictJson {
 public:
  using StrictJson::StrictJson;

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(size_t) override;
  bool key(string_t& text) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool string(string_t& text) override;
  bool number_unsigned(number_unsigned_t value) override;

 private:
  enum class At { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum Field : unsigned { kNone = 0, kDtype = 1, kShapeField = 2, kOffsetsField = 4, kAll = 7 };

  std::string place() const override;
  void tensor_name(const std::string& name);
  void field(const std::string& name);
  Entry& tensor() { return entries.back(); }

  At at_ = At::kStart;
  std::string name_, key_;      // key of the top level; key below it
  bool have_metadata_ = false;  // "__metadata__" was seen
  Field field_ = kNone;         // of the tensor at hand
  unsigned seen_ = 0;           // set of Field
  size_t num_offsets_ = 0;
};

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

// Bytes of the tensor. Empty axes count as 1 for the limit, so strides cannot overflow either.
uint64_t checked_bytes(const Entry& entry, const std::string& what) {
  int64_t bytes = item_bytes(entry.dtype), bound = bytes;
  for (int i = 0; i < entry.rank; ++i) {
    const int64_t extent = entry.shape[static_cast<size_t>(i)];
    if (__builtin_mul_overflow(bound, std::max<int64_t>(extent, 1), &bound))
      fail(ErrorCode::kBadInput, "{}: {}: the shape's product overflows 64 bits", what,
           quotable(entry.name));
    bytes *= extent;
  }
  return static_cast<uint64_t>(bytes);
}

void check_entry(const Entry& entry, uint64_t data_bytes, const std::string& what) {
  const auto [begin, end] = entry.offsets;
  const uint64_t want = checked_bytes(entry, what);
  if (begin > end || end - begin != want)
    fail(ErrorCode::kBadInput, "{}: {}: the shape needs {} bytes, data_offsets are [{}, {}]", what,
         quotable(entry.name), want, begin, end);
  if (end > data_bytes)
    fail(ErrorCode::kBadInput, "{}: {} ends at byte {} of the data, but the file has only {} ({})",
         what, quotable(entry.name), end, data_bytes, "incomplete download?");
}

// Sorts by offset; throws unless the tensors cover [0, data_bytes) exactly.
void check_cover(std::vector<Entry>* entries, uint64_t data_bytes, const std::string& what) {
  std::sort(entries->begin(), entries->end(),
            [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  uint64_t covered = 0;
  for (const Entry& entry : *entries) {
    const auto [begin, end] = entry.offsets;
    if (begin != covered)
      fail(ErrorCode::kBadInput,
           "{}: {} starts at byte {} of the data, but the one before ends at {} ({})", what,
           quotable(entry.name), begin, covered, begin < covered ? "overlap" : "hole");
    covered = end;
  }
  if (covered != data_bytes)
    fail(ErrorCode::kBadInput, "{}: the tensors end at byte {} of {} bytes of data", what, covered,
         data_bytes);
}

// The JSON text; throws when the length in front of it cannot be true.
std::string_view header_text(std::span<const std::byte> bytes, const std::string& what) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.substr(0, 19) == "version https://git")
    fail(ErrorCode::kBadInput, "{} is a Git LFS pointer, not the file itself: run git lfs pull",
         what);
  if (bytes.size() < kLengthBytes)
    fail(ErrorCode::kBadInput, "{}: {} bytes are too few for a safetensors file", what,
         bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxSafetensorsHeader)
    fail(ErrorCode::kBadInput, "{}: header of {} bytes exceeds the limit of {} (not safetensors?)",
         what, length, kMaxSafetensorsHeader);
  if (length > bytes.size() - kLengthBytes)
    fail(ErrorCode::kBadInput,
         "{}: header of {} bytes in a file of {} bytes (incomplete download?)", what, length,
         bytes.size());
  const std::string_view header = text.substr(kLengthBytes, static_cast<size_t>(length));
  if (header.empty() || header[0] != '{')
    fail(ErrorCode::kBadInput, "{}: the header does not start with '{{'", what);
  return header;
}

}  // namespace

SafetensorsIndex parse_safetensors(std::span<const std::byte> bytes, const std::string& what) {
  const std::string_view header = header_text(bytes, what);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header.size());
  HeaderReader reader(what);
  reader.parse(header);
  for (const Entry& entry : reader.entries) check_entry(entry, data.size(), what);
  check_cover(&reader.entries, data.size(), what);

  SafetensorsIndex index;
  index.metadata = std::move(reader.metadata);
  for (Entry& entry : reader.entries) {
    const std::span shape(entry.shape.data(), static_cast<size_t>(entry.rank));
    const ConstTensorView view(TensorMeta::contiguous(entry.dtype, shape),
                               data.data() + entry.offsets[0]);
    const auto [at, fresh] = index.tensors.emplace(std::move(entry.name), view);
    if (!fresh) fail(ErrorCode::kBadInput, "{}: {} is there twice", what, quotable(at->first));
  }
  return index;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), index_(parse_safetensors(file_.bytes(), path)) {
  for (auto& [name, view] : index_.tensors) {
    const auto address = reinterpret_cast<uintptr_t>(view.data);
    if (address % static_cast<uintptr_t>(item_bytes(view.dtype)) == 0) continue;
    copies_.emplace_back(DType::kU8, std::initializer_list<int64_t>{view.bytes()});
    std::byte* copy = copies_.back().view().data;
    if (view.bytes() > 0) std::memcpy(copy, view.data, static_cast<size_t>(view.bytes()));
    view.data = copy;
  }
}

}  // namespace dsv4
