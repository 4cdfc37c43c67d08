#include "dsv4/loader/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "dsv4/base/error.h"
#include "dsv4/loader/safetensors_header.h"
#include "dsv4/tensor/memory.h"

namespace dsv4 {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr size_t kLengthBytes = 8;

// Size of the tensor. Empty axes count as 1 in the check, so strides cannot overflow either.
uint64_t checked_bytes(const HeaderEntry& entry, const std::string& what) {
  int64_t bytes = item_bytes(entry.dtype), bound = bytes;
  for (int i = 0; i < entry.rank; ++i) {
    const int64_t extent = entry.shape[static_cast<size_t>(i)];
    if (__builtin_mul_overflow(bound, std::max<int64_t>(extent, 1), &bound))
      fail(ErrorCode::kBadInput, "{}: {}: the size of this shape overflows 64 bits", what,
           quotable(entry.name));
    bytes *= extent;
  }
  return static_cast<uint64_t>(bytes);
}

void check_entry(const HeaderEntry& entry, uint64_t data_bytes, const std::string& what) {
  const auto [begin, end] = entry.offsets;
  const uint64_t want = checked_bytes(entry, what);
  if (begin > end || end - begin != want)
    fail(ErrorCode::kBadInput, "{}: {}: the shape needs {} bytes, data_offsets are [{}, {}]", what,
         quotable(entry.name), want, begin, end);
  if (end > data_bytes)
    fail(ErrorCode::kBadInput,
         "{}: {} ends at byte {} of the data, but the file has only {} (incomplete download?)",
         what, quotable(entry.name), end, data_bytes);
}

// Sorts by offset; throws unless the tensors cover [0, data_bytes) exactly.
void check_cover(std::vector<HeaderEntry>* entries, uint64_t data_bytes, const std::string& what) {
  std::sort(entries->begin(), entries->end(),
            [](const HeaderEntry& a, const HeaderEntry& b) { return a.offsets < b.offsets; });
  uint64_t covered = 0;
  for (const HeaderEntry& entry : *entries) {
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

// The JSON text at the beginning of a file of `file_bytes`; throws when the length before it is
// impossible.
std::string_view header_text(std::string_view text, uint64_t file_bytes, const std::string& what) {
  if (text.rfind("version https://git", 0) == 0)
    fail(ErrorCode::kBadInput, "{} is a Git LFS pointer, not the file itself: run git lfs pull",
         what);
  if (text.size() < kLengthBytes)
    fail(ErrorCode::kBadInput, "{}: {} bytes are too few for a safetensors file", what,
         text.size());
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  if (length > kMaxSafetensorsHeader)
    fail(ErrorCode::kBadInput, "{}: header of {} bytes exceeds the limit of {} (not safetensors?)",
         what, length, kMaxSafetensorsHeader);
  if (length > std::min<uint64_t>(text.size(), file_bytes) - kLengthBytes)
    fail(ErrorCode::kBadInput,
         "{}: header of {} bytes in a file of {} bytes (incomplete download?)", what, length,
         std::min<uint64_t>(text.size(), file_bytes));
  const std::string_view header = text.substr(kLengthBytes, static_cast<size_t>(length));
  if (header.empty() || header[0] != '{')
    fail(ErrorCode::kBadInput, "{}: the header does not start with '{{'", what);
  return header;
}

// `base`: where the file would begin in memory.
SafetensorsIndex parse(std::string_view begin, uint64_t file_bytes, const std::byte* base,
                       const std::string& what) {
  const std::string_view header = header_text(begin, file_bytes, what);
  const std::byte* data = base + kLengthBytes + header.size();
  const uint64_t data_bytes = file_bytes - kLengthBytes - header.size();
  HeaderReader reader(what);
  reader.parse(header);
  for (const HeaderEntry& entry : reader.entries) check_entry(entry, data_bytes, what);
  check_cover(&reader.entries, data_bytes, what);

  SafetensorsIndex index;
  index.metadata = std::move(reader.metadata);
  for (HeaderEntry& entry : reader.entries) {
    const std::span shape(entry.shape.data(), static_cast<size_t>(entry.rank));
    const ConstTensorView view(TensorMeta::contiguous(entry.dtype, shape), data + entry.offsets[0]);
    const auto [at, fresh] = index.tensors.emplace(std::move(entry.name), view);
    if (!fresh) fail(ErrorCode::kBadInput, "{}: {} occurs twice", what, quotable(at->first));
  }
  return index;
}

}  // namespace

SafetensorsIndex parse_safetensors(std::span<const std::byte> bytes, const std::string& what) {
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, bytes.size(),
               bytes.data(), what);
}

SafetensorsIndex parse_safetensors_header(std::string_view begin, int64_t file_bytes,
                                          const std::string& what) {
  return parse(begin, static_cast<uint64_t>(file_bytes), unmapped_address(0), what);
}

int64_t safetensors_header_bytes(std::string_view begin) {
  uint64_t length = 0;
  if (begin.size() < kLengthBytes) return 0;
  std::memcpy(&length, begin.data(), sizeof length);
  return length > kMaxSafetensorsHeader ? 0 : static_cast<int64_t>(kLengthBytes + length);
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
