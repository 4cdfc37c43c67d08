#include "tests/harness/strided.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "dsv4/base/bits.h"

namespace dsv4::test {
namespace {

constexpr auto kGap = std::byte{0xff};

bool same_meta(const TensorMeta& a, const TensorMeta& b) {
  return a.dtype == b.dtype && a.rank == b.rank && a.shape == b.shape && a.stride == b.stride;
}

// Calls visit(byte offset in a, byte offset in b, bytes) for every run along the last axis.
void for_each_run(const TensorMeta& a, const TensorMeta& b,
                  const std::function<void(int64_t, int64_t, int64_t)>& visit) {
  const int64_t item = item_bytes(a.dtype), width = a.dim(-1),
                runs = width == 0 ? 0 : a.numel() / width;
  for (int64_t run = 0; run < runs; ++run) {
    int64_t rest = run, in_a = 0, in_b = 0;
    for (int axis = a.rank - 2; axis >= 0; --axis) {
      const auto i = static_cast<size_t>(axis);
      const int64_t index = rest % a.shape[i];
      rest /= a.shape[i];
      in_a += index * a.stride[i];
      in_b += index * b.stride[i];
    }
    visit(in_a * item, in_b * item, width * item);
  }
}

void copy_elements(const TensorView& from, const TensorView& to) {
  for_each_run(from, to, [&](int64_t in_from, int64_t in_to, int64_t bytes) {
    std::copy_n(from.data + in_from, bytes, to.data + in_to);
  });
}

}  // namespace

TensorView StridedCopy::copy_of(const TensorView& from) {
  for (const Copy& copy : copies_) {
    if (copy.from.data == from.data && same_meta(copy.from, from)) return copy.to;
  }
  const int64_t item = item_bytes(from.dtype);
  // Bytes stand for records of wider items, which stay on the same alignment.
  const bool records = from.dtype == DType::kU8;
  const int64_t gap = ceil_div(records ? kAlignedGap : pattern_.gap_bytes, item);
  TensorMeta meta = from;
  int64_t extent = from.dim(-1);  // elements from the first to the last of the axes so far
  for (int axis = from.rank - 2; axis >= 0; --axis) {
    const auto i = static_cast<size_t>(axis);
    meta.stride[i] = extent + gap;
    extent += std::max<int64_t>(0, meta.shape[i] - 1) * meta.stride[i];
  }
  const Role role = arena_.role_of(from.data);
  const int64_t bytes = (gap + extent) * item;
  const TensorView storage = role == Role::kInput ? memory_.input(DType::kU8, {bytes})
                                                  : memory_.inout(DType::kU8, {bytes});
  copies_.push_back({from, {meta, storage.data + gap * item}, storage, role});
  return copies_.back().to;
}

void StridedCopy::prepare() {
  for (const Copy& copy : copies_) {
    std::fill_n(copy.storage.data, copy.storage.bytes(), kGap);
    if (copy.role != Role::kOutput) copy_elements(copy.from, copy.to);
  }
  memory_.freeze();
}

void StridedCopy::finish() {
  memory_.verify();
  for (const Copy& copy : copies_) {
    if (copy.role == Role::kInput) continue;
    copy_elements(copy.to, copy.from);
    for_each_run(copy.to, copy.to, [&](int64_t at, int64_t, int64_t bytes) {
      std::fill_n(copy.to.data + at, bytes, kGap);
    });
    const std::byte* begin = copy.storage.data;
    EXPECT_TRUE(
        std::all_of(begin, begin + copy.storage.bytes(), [](std::byte b) { return b == kGap; }))
        << "bytes between the rows of a strided tensor were written: " << to_string(copy.to);
  }
}

}  // namespace dsv4::test
