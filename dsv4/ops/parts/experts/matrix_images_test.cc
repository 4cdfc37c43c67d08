// experts.h with a kernel image of each matrix (WeightLayout::kMatrixImages), rows of bf16, f32
// between the products: sm90_image. Other implementations refuse this layout.

#include <memory>
#include <string>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/experts/matrix_images_case_test.h"
#include "tests/harness/impl_count.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::MatrixImagesCase, test::one_token, test::StoredAs;

// They take other layouts.
const test::TestedElsewhere kOfOtherLayouts{"cublaslt_fp8",
                                            "sm90_few_e4m3",
                                            "sm90_few",
                                            "sm90_wide",
                                            "sm90_many_e4m3",
                                            "sm90_grouped_e4m3",
                                            "sm90_grouped",
                                            "cuda_mma",
                                            "cuda_kbit",
                                            "cuda",
                                            "cpu"};

constexpr StoredAs kKinds[] = {{WeightFormat::kKbit, 2, true},
                               {WeightFormat::kKbit, 3, true},
                               {WeightFormat::kKbit, 4, true},
                               {WeightFormat::kMxfp4},
                               {WeightFormat::kNvfp4}};

void check(MatrixImagesCase& c, const std::string& name) {
  const Context exact{.numerics = Numerics::kExact};
  experts.check(c.args);
  test::OpCase<ExpertsArgs> test{.name = name,
                                 .args = c.args,
                                 .outputs = {{"acc",
                                              c.args.acc,
                                              experts_oracle(exact, c.file_args),
                                              {.ulps = 4, .rel = 4e-6},
                                              experts_magnitude(c.file_args)}},
                                 .one_token = one_token,
                                 .num_tokens = c.args.x.dim(0)};
  test.strided = [](ExpertsArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.experts), copy(a.weights), copy(a.acc);
  };
  check_op(experts.impls, exact, c.arena, test);
}

class ExpertsOfMatrixImages : public testing::Test {
  void SetUp() override {
    if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  }
};

TEST_F(ExpertsOfMatrixImages, AgreeWithOracle) {
  for (const StoredAs& stored : kKinds) {
    const auto check_shape = [&](const test::ExpertsShape& s, int64_t inner, int64_t count) {
      MatrixImagesCase c(s, inner, count, stored, stored);
      check(c, fmt::format("{} t={} k={} d={} i={} e={}", test::name(stored), s.t, s.k, s.d, inner,
                           count));
    };
    check_shape({.t = 0, .k = 2, .d = 64}, 32, 3);
    check_shape({.t = 1, .k = 6, .d = 1312}, 256, 9);
    check_shape({.t = 5, .k = 4, .d = 288}, 160, 7);
    check_shape({.t = 40, .k = 3, .d = 544}, 96, 11);
    check_shape({.t = 2, .k = 1, .d = 4128}, 32, 2);
    check_shape({.t = 3, .k = 2, .d = 64}, 4128, 2);
    for (const int64_t t : {1, 2, 4, 5, 33})
      check_shape({.t = t, .k = 1, .d = 160, .only = 3}, 96, 5);
  }
}

TEST_F(ExpertsOfMatrixImages, KindsMayDiffer) {
  MatrixImagesCase fp4({.t = 7, .k = 2, .d = 288}, 96, 3, kKinds[1], kKinds[4]);
  check(fp4, "k3, nvfp4");
  MatrixImagesCase bits({.t = 20, .k = 2, .d = 160}, 64, 3, kKinds[2], kKinds[0]);
  check(bits, "k4, k2");
}

TEST_F(ExpertsOfMatrixImages, ManyExpertsAndPairs) {
  MatrixImagesCase experts512({.t = 9, .k = 10, .d = 64}, 32, 512, kKinds[1], kKinds[1]);
  check(experts512, "512 experts");
  MatrixImagesCase many({.t = 140, .k = 16, .d = 32}, 32, 33, kKinds[0], kKinds[0]);
  check(many, "2,240 pairs");
}

TEST_F(ExpertsOfMatrixImages, Activations) {
  for (const GateActivation activation : {GateActivation::kGelu, GateActivation::kGeluTanh}) {
    MatrixImagesCase c({.t = 3, .k = 2, .d = 288}, 96, 4, kKinds[1], kKinds[1]);
    c.args.activation = c.file_args.activation = activation;
    c.args.swiglu_limit = c.file_args.swiglu_limit = 0;
    check(c, fmt::format("activation {}", static_cast<int>(activation)));
  }
}

#if DSV4_CUDA
TEST(MatrixImagesImpls, DryRunChoosesAndRefuses) {
  const std::unique_ptr<Device> device =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const Context exact{.numerics = Numerics::kExact, .device = device.get()};
  const auto reason = [&](const ExpertsArgs& args, const Context& context) {
    const char* why = impl_of(experts, "sm90_image").reject(context, args);
    return std::string(why == nullptr ? "" : why);
  };
  MatrixImagesCase c({.t = 5, .k = 2, .d = 96}, 64, 4, kKinds[1], kKinds[2]);
  EXPECT_EQ(reason(c.args, exact), "");
  EXPECT_EQ(choose(experts, exact, c.args).name, "sm90_image");
  EXPECT_EQ(reason(c.file_args, exact), "for kernel images of each matrix");
  EXPECT_EQ(reason(c.args, {.device = device.get()}), "official numerics");
  ExpertsArgs args = c.args;
  args.may_round_operands = false;
  EXPECT_EQ(reason(args, exact), "operands must not be rounded");
  args = c.args, args.x.dtype = DType::kF32;
  EXPECT_EQ(reason(args, exact), "x is not bf16");
  const auto with = [&](const auto& change) {
    std::vector<ExpertWeights> other = c.images;
    change(other);
    args = c.args, args.stack = ExpertStack(other, WeightLayout::kMatrixImages);
    return reason(args, exact);
  };
  EXPECT_EQ(with([](auto& all) { std::swap(all[2].w2.data, all[3].w2.data); }),
            "experts at unequal distances");
  EXPECT_EQ(with([](auto& all) { all[1].w1.e4m3_codebook = false; }),
            "experts differ in format or codebook");
  EXPECT_EQ(with([](auto& all) {
              for (ExpertWeights& e : all) e.w3.bits = 2;
            }),
            "gate and up differ in format or codebook");
}
#endif

}  // namespace
}  // namespace dsv4
