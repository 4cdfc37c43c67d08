// check_mirrors: every implementation of an op that stores its outputs on several ranks stores the
// bytes that it stores without mirrors, in all places, and nothing beside them. Places are parts of
// one tensor; rows are apart, as columns of a wider tensor are.

#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/ops/op.h"
#include "tests/harness/arena.h"
#include "tests/harness/gpu.h"

namespace dsv4::test {

// outputs: two-dimensional members of args. Returns how many implementations there are.
template <class Args>
int check_mirrors(const Op<Args>& op, const Context& context, Arena& arena, const Args& args,
                  const std::vector<TensorView Args::*>& outputs) {
  if (gpu() == nullptr) return 0;
  constexpr int kCopies = 2;
  constexpr int64_t kGap = 64;  // values between rows
  constexpr uint8_t kPoison = 0xa5;
  std::vector<int64_t> begin;
  int64_t size = 0;
  for (const auto output : outputs) {
    const TensorView& view = args.*output;
    begin.push_back(size);
    size += align_up(view.dim(0) * (view.dim(1) + kGap) * item_bytes(view.dtype), 256);
  }
  const TensorView places = arena.output(DType::kU8, {(kCopies + 1) * size});
  Args mirrored = args;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorView& view = args.*outputs[i];
    const TensorMeta wide = TensorMeta::contiguous(view.dtype, {view.dim(0), view.dim(1) + kGap});
    mirrored.*outputs[i] =
        TensorView(wide, places.data + begin[i]).slice(1, kGap / 2, kGap / 2 + view.dim(1));
  }
  mirrored.mirrors.count = kCopies;
  for (int copy = 0; copy < kCopies; ++copy) mirrored.mirrors.distance[copy] = (copy + 1) * size;
  int count = 0;
  for (const Impl<Args>& impl : op.impls) {
    Context own = context;
    own.device = gpu(), own.force_impl = impl.name;
    if (reason_against(impl, own, mirrored) != nullptr) continue;
    SCOPED_TRACE(impl.name);
    ++count;
    std::memset(places.data, kPoison, static_cast<size_t>(places.bytes()));
    op(own, args);
    op(own, mirrored);
    wait(*gpu());
    std::vector<std::byte> want(static_cast<size_t>(size), std::byte{kPoison});
    for (size_t i = 0; i < outputs.size(); ++i) {
      const TensorView &plain = args.*outputs[i], &view = mirrored.*outputs[i];
      const int64_t item = item_bytes(view.dtype);
      for (int64_t row = 0; row < plain.dim(0); ++row)
        std::memcpy(want.data() + (view.data - places.data) + row * view.row_stride() * item,
                    plain.data + row * plain.row_stride() * item,
                    static_cast<size_t>(plain.dim(1) * item));
    }
    for (int place = 0; place <= kCopies; ++place)
      EXPECT_EQ(std::memcmp(places.data + place * size, want.data(), want.size()), 0)
          << "place " << place;
  }
  return count;
}

}  // namespace dsv4::test
