#include "tests/emulator/tensor_map.h"

#include <cstring>

#include "dsv4/base/error.h"

namespace dsv4::emulator {
namespace {

constexpr uint64_t kMark = 0x64737634'746d6170;

struct Encoded {
  uint64_t mark;
  const void* base;
  uint32_t last[TmaBox::kMaxRank];  // size - 1
  uint64_t stride[TmaBox::kMaxRank - 1];
  uint16_t box[TmaBox::kMaxRank];
  uint8_t rank;
  DType dtype;
  TmaSwizzle swizzle;
};
static_assert(sizeof(Encoded) <= sizeof(CUtensorMap));

}  // namespace

int64_t swizzle_bytes(TmaSwizzle swizzle) {
  constexpr int64_t kBytes[] = {0, 32, 64, 128};  // by TmaSwizzle
  return kBytes[static_cast<size_t>(swizzle)];
}

CUtensorMap make_tma_map(const TmaBox& box) {
  check(box);
  const int64_t row = box.box[0] * item_bytes(box.dtype);
  const int64_t span = swizzle_bytes(box.swizzle);
  DSV4_CHECK(box.swizzle == TmaSwizzle::kNone || row == span,
             "a row of the box has {} bytes, the emulated swizzle needs {}", row, span);
  Encoded encoded{};
  encoded.mark = kMark;
  encoded.base = box.base;
  encoded.rank = static_cast<uint8_t>(box.rank);
  encoded.dtype = box.dtype;
  encoded.swizzle = box.swizzle;
  for (size_t i = 0; i < static_cast<size_t>(box.rank); ++i) {
    encoded.last[i] = static_cast<uint32_t>(box.size[i] - 1);
    encoded.box[i] = static_cast<uint16_t>(box.box[i]);
    if (i > 0) encoded.stride[i - 1] = static_cast<uint64_t>(box.stride[i]);
  }
  CUtensorMap map{};
  std::memcpy(&map, &encoded, sizeof(encoded));
  return map;
}

TmaBox description(const CUtensorMap& map) {
  Encoded encoded;
  std::memcpy(&encoded, &map, sizeof(encoded));
  if (encoded.mark != kMark)
    fail(ErrorCode::kInvalidArgument, "not a tensor map of emulator::make_tma_map()");
  TmaBox box{.base = encoded.base,
             .dtype = encoded.dtype,
             .rank = encoded.rank,
             .swizzle = encoded.swizzle};
  for (size_t i = 0; i < static_cast<size_t>(box.rank); ++i) {
    box.size[i] = int64_t{encoded.last[i]} + 1;
    box.box[i] = encoded.box[i];
    if (i > 0) box.stride[i] = static_cast<int64_t>(encoded.stride[i - 1]);
  }
  return box;
}

}  // namespace dsv4::emulator
