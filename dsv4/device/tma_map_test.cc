// The rules need no GPU; only the last test does.

#include "dsv4/device/tma_map.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/device/device.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

alignas(16) std::byte memory[64];

TmaBox good() {
  return tma_rows(memory, DType::kBF16, 1000, 512, 1024, 64, 64, TmaSwizzle::k128);
}

// `change` breaks one rule; the sentence must name it.
template <class Change>
void expect_refused(const std::string& part, const Change& change) {
  TmaBox box = good();
  change(box);
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kInvalidArgument, [&] { check(box); }), part));
}

TEST(TmaMap, EveryRuleIsASentence) {
  check(good());
  expect_refused("must begin at a multiple of 16 bytes", [](TmaBox& b) { b.base = memory + 8; });
  expect_refused("must begin at a multiple", [](TmaBox& b) { b.base = nullptr; });
  expect_refused("1 to 5 axes, not 0", [](TmaBox& b) { b.rank = 0; });
  expect_refused("1 to 5 axes, not 6", [](TmaBox& b) { b.rank = 6; });
  expect_refused("axis 1 has 0 elements", [](TmaBox& b) { b.size[1] = 0; });
  expect_refused("axis 1 has a stride of 1032 bytes", [](TmaBox& b) { b.stride[1] = 1032; });
  expect_refused("the axes inside span 1024", [](TmaBox& b) { b.stride[1] = 512; });
  expect_refused("not a multiple of 16 below", [](TmaBox& b) { b.stride[1] = int64_t{1} << 40; });
  expect_refused("axis 0 of the box has 257 elements", [](TmaBox& b) { b.box[0] = 257; });
  expect_refused("axis 1 of the box has 0 elements", [](TmaBox& b) { b.box[1] = 0; });
  expect_refused("not a multiple of 16", [](TmaBox& b) { b.box[0] = 12; });
  expect_refused("the swizzle spans 64", [](TmaBox& b) { b.swizzle = TmaSwizzle::k64; });
  expect_refused("tensor maps of I64", [](TmaBox& b) { b.dtype = DType::kI64; });
}

TEST(TmaMap, DriverTakesWhatPasses) {
  if (list_devices().empty()) GTEST_SKIP() << "no GPU";
  Device device(0);
  if (device.info().major < 9) GTEST_SKIP() << "tensor maps begin with Hopper";
  const Buffer tensor(DType::kBF16, {1000, 512}, device.memory());
  TmaBox box = good();
  box.base = tensor.view().data;
  for (const auto& [swizzle, columns] :
       {std::pair{TmaSwizzle::k128, 64}, {TmaSwizzle::k64, 32}, {TmaSwizzle::kNone, 256}}) {
    box.swizzle = swizzle, box.box[0] = columns;
    EXPECT_NO_THROW(make_tma_map(box));
  }
}

}  // namespace
}  // namespace dsv4
