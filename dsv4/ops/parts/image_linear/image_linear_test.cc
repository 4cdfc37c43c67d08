// image_linear.h against the oracle of linear.h, whose weights are the rows of the images.

#include <memory>
#include <string>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/parts/experts/matrix_images_case_test.h"
#include "dsv4/ops/parts/image_linear/image_linear.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena, test::StoredAs;

constexpr StoredAs kKinds[] = {{WeightFormat::kKbit, 2, true},
                               {WeightFormat::kKbit, 3, true},
                               {WeightFormat::kKbit, 4, true},
                               {WeightFormat::kMxfp4},
                               {WeightFormat::kNvfp4}};

struct Scene {
  int64_t t, n, k;
  DType out = DType::kBF16;
  int64_t first = 0;  // columns of x before those of the call
};

struct Case {
  Arena arena;
  LinearArgs rows;
  ImageLinearArgs args;

  Case(const StoredAs& stored, const Scene& s) {
    Rng rng(static_cast<uint64_t>(stored.bits * 10007 + s.t * 1009 + s.n * 13 + s.k));
    const WeightView weight = test::random_weight(arena, rng, stored, s.n, s.k);
    rows = test::random_linear(
        arena, rng, {.t = s.t, .x = DType::kBF16, .out = s.out, .first = s.first}, weight);
    args = {.x = rows.x, .weight = test::matrix_images(arena, {weight})[0], .out = rows.out};
  }
};

ImageLinearArgs tokens(const ImageLinearArgs& args, int64_t begin, int64_t end) {
  ImageLinearArgs part = args;
  part.x = args.x.slice(0, begin, end), part.out = args.out.slice(0, begin, end);
  return part;
}

void check(const StoredAs& stored, const Scene& s) {
  Case c(stored, s);
  image_linear.check(c.args);
  const double magnitude = linear_magnitude(c.rows);
  test::OpCase<ImageLinearArgs> test{
      .name =
          fmt::format("{} t={} n={} k={} to {}", test::name(stored), s.t, s.n, s.k, name(s.out)),
      .args = c.args,
      .outputs = {{"out", c.args.out, linear_oracle(c.rows),
                   test::linear_tolerance(c.rows, magnitude), magnitude}},
      .one_token = [](const ImageLinearArgs& a, int64_t i) { return tokens(a, i, i + 1); },
      .num_tokens = s.t};
  test.strided = [](ImageLinearArgs& a, test::StridedCopy& copy) { copy(a.x), copy(a.out); };
  check_op(image_linear.impls, {.force_impl = "sm90_image"}, c.arena, test);
}

class ImageLinear : public testing::Test {
  void SetUp() override {
    if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  }
};

TEST_F(ImageLinear, AgreesWithOracle) {
  for (const StoredAs& stored : kKinds) {
    for (const int64_t t : {1, 2, 3, 4, 5, 8, 17}) check(stored, {.t = t, .n = 133, .k = 672});
    for (const int64_t k : {32, 256, 1024, 1056, 4096, 4128, 8192})
      check(stored, {.t = 3, .n = 71, .k = k, .out = DType::kF32});
    for (const int64_t n : {1, 16, 63, 64, 65, 9001})
      check(stored, {.t = 2, .n = n, .k = 256, .out = DType::kF16});
  }
}

// More rows than a kernel lists.
TEST_F(ImageLinear, ManyRows) {
  check(kKinds[1], {.t = 131, .n = 40, .k = 64});
  check(kKinds[4], {.t = 67, .n = 40, .k = 64});
}

TEST_F(ImageLinear, RowsOfXMayBeStrided) {
  check(kKinds[2], {.t = 5, .n = 100, .k = 288, .first = 8});
}

#if DSV4_CUDA
TEST(ImageLinearImpls, DryRunChoosesAndRefuses) {
  const std::unique_ptr<Device> device =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const Context context{.device = device.get()};
  const auto reason = [&](const ImageLinearArgs& args, Context c) {
    const char* why = impl_of(image_linear, "sm90_image").reject(c, args);
    return std::string(why == nullptr ? "" : why);
  };
  Case few(kKinds[1], {.t = 16, .n = 64, .k = 96}), many(kKinds[1], {.t = 17, .n = 64, .k = 96});
  EXPECT_EQ(reason(few.args, context), "");
  EXPECT_EQ(reason(many.args, context), "more than 16 rows");
  Context invariant = context;
  invariant.need_batch_invariant = true;
  EXPECT_EQ(reason(many.args, invariant), "");
  Context exact = context;
  exact.numerics = Numerics::kExact;
  EXPECT_EQ(reason(few.args, exact), "exact numerics");
  ImageLinearArgs args = few.args;
  args.x.dtype = DType::kF16;
  EXPECT_EQ(reason(args, context), "x is not bf16");
  args = few.args, args.weight.e4m3_codebook = false;
  EXPECT_EQ(reason(args, context), "the codebook is not e4m3");
  args = few.args, args.weight.bits = 5;
  EXPECT_EQ(reason(args, context), "K = 5");
}
#endif

}  // namespace
}  // namespace dsv4
