// moe_output.h, with all rows of the experts and with those of a rank.

#include "dsv4/ops/model/moe/moe_output.h"

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/model/moe/random_moe_test.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/experts/halves_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using Shape = test::MoeShape;
using Case = test::MoeCase;
using test::StoredAs;

constexpr StoredAs kMxfp4{WeightFormat::kMxfp4}, kFp8{WeightFormat::kFp8Block};

template <class Values>
TensorView filled(test::Arena& arena, DType dtype, std::initializer_list<int64_t> shape,
                  const Values& values) {
  const Buffer stored = oracle::stored(dtype, shape, values);
  const TensorView view = arena.input(dtype, shape);
  std::memcpy(view.data, stored.view().data, static_cast<size_t>(view.bytes()));
  return view;
}

// The second part of `whole`, after a first part in f64. stacks: with the rows of a rank.
MoeOutputArgs second_part(test::Arena& arena, const Context& context, const MoeArgs& whole,
                          const ExpertStack& routed, const ExpertStack& shared) {
  const int64_t t = whole.x.dim(0), k = whole.experts_per_token, e = whole.gate.n;
  const DType act = activation_dtype(context);
  const Buffer logits(DType::kF32, {t, e}), chosen(DType::kI32, {t, k}),
      hidden(act, {t * k, whole.routed.inner()}), shared_hidden(act, {t, whole.shared.inner()});
  const MoeHiddenAnswer first = moe_hidden_oracle(context, {.x = whole.x,
                                                            .ids = whole.ids,
                                                            .gate = whole.gate,
                                                            .bias = whole.bias,
                                                            .tid2eid = whole.tid2eid,
                                                            .routed = whole.routed,
                                                            .shared = whole.shared,
                                                            .route_scale = whole.route_scale,
                                                            .normalize = whole.normalize,
                                                            .swiglu_limit = whole.swiglu_limit,
                                                            .logits = logits,
                                                            .chosen = chosen,
                                                            .hidden = hidden,
                                                            .shared_hidden = shared_hidden});
  const int64_t n = shared.file()[0].w2.n;
  return {.hidden = filled(arena, act, {t * k, whole.routed.inner()}, first.hidden),
          .shared_hidden = filled(arena, act, {t, whole.shared.inner()}, first.shared_hidden),
          .chosen = filled(arena, DType::kI32, {t, k}, first.chosen),
          .logits = filled(arena, DType::kF32, {t, e}, first.logits),
          .ids = whole.ids,
          .bias = whole.bias,
          .tid2eid = whole.tid2eid,
          .routed = routed,
          .shared = shared,
          .acc = arena.output(DType::kF32, {t, n})};
}

// file: the experts that images were made of
std::vector<double> oracle_of(const Context& context, const MoeOutputArgs& args,
                              const ExpertStack& file) {
  const TensorMeta shape = args.acc;
  const Buffer zeros(DType::kF32, {shape.shape[0], shape.shape[1]});
  const Buffer routed = oracle::stored(
      DType::kF32, {shape.shape[0], shape.shape[1]},
      experts_output_oracle(
          context, {.hidden = args.hidden, .stack = file, .experts = args.chosen, .acc = zeros}));
  return experts_output_oracle(context,
                               {.hidden = args.shared_hidden, .stack = args.shared, .acc = routed});
}

void check_case(const std::string& name, const Context& context, Case& c, const MoeOutputArgs& args,
                const ExpertStack& file) {
  const bool exact = context.numerics == Numerics::kExact;
  check_op(moe_output.impls, context, c.arena,
           test::OpCase<MoeOutputArgs>{
               .name = name,
               .args = args,
               .outputs = {{"acc", args.acc, oracle_of(context, args, file),
                            exact ? test::Tolerance{.ulps = 4, .rel = 8e-6}
                                  : test::Tolerance{.rel = 0.02, .cosine = 1e-5}}}});
}

TEST(MoeOutput, AgreesWithOracle) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const int64_t t : {0, 1, 7}) {
      const Context context{.numerics = numerics};
      Case c;
      fill_case(c, {t, 128, 6, 2, 64, t == 7}, kMxfp4, kFp8, activation_dtype(context));
      check_case(fmt::format("moe_output t={} {}", t, name(numerics)), context, c,
                 second_part(c.arena, context, c.args, c.routed, c.shared), c.routed);
    }
  }
}

// One token, for sm90_fused: an even and an odd number of items; rows that fill no tile; one to
// four shares of the shared expert's columns; learned and hash routing; 8 and 12 experts of a lane.
TEST(MoeOutput, Images) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  const Shape shapes[] = {{1, 384, 20, 6, 64},          {1, 256, 300, 8, 1024},
                          {1, 128, 9, 3, 512, true},    {1, 2048, 16, 6, 2048},
                          {1, 256, 384, 1, 256, false}, {2, 256, 20, 6, 64}};
  for (const test::ImageSource& source :
       {test::ImageSource(3), test::ImageSource(WeightFormat::kMxfp4),
        test::ImageSource(WeightFormat::kNvfp4)}) {
    for (const Shape& shape : shapes) {
      // The shared expert has twice the rows.
      if (2 * shape.inner > 2048 && shape.inner != 2048) continue;
      Case c;
      const MoeArgs file = fill_images(c, shape, source, source);
      const MoeOutputArgs args = second_part(c.arena, {}, file, c.args.routed, c.shared);
      check_case(fmt::format("moe_output images {} d={} k={} i={}", name(source), shape.d, shape.k,
                             shape.inner),
                 {}, c, args, file.routed);
    }
  }
}

#if DSV4_CUDA
TEST(MoeOutput, DryRun) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const Context context{.device = hopper.get()};
  for (const int64_t t : {1, 2}) {
    Case c;
    const MoeArgs file = fill_images(c, {t, 384, 20, 6, 64}, 3, 3);
    const MoeOutputArgs args = second_part(c.arena, {}, file, c.args.routed, c.shared);
    EXPECT_EQ(choose(moe_output, context, args).name, t == 1 ? "sm90_fused" : "parts") << t;
    MoeOutputArgs mirrored = args;
    mirrored.mirrors.count = 1;
    EXPECT_EQ(choose(moe_output, context, mirrored).name, "parts");
  }
}
#endif

TEST(MoeOutput, ReportsErrors) {
  Scratch scratch;
  const Context context{.workspace = &scratch};
  Case c;
  fill_case(c, {2, 32, 4, 2, 32}, {WeightFormat::kBF16}, {WeightFormat::kBF16}, DType::kBF16);
  const MoeOutputArgs good = second_part(c.arena, context, c.args, c.routed, c.shared);
  const auto message = [&](auto change) {
    MoeOutputArgs args = good;
    change(args);
    return test::error_of([&] { moe_output(context, args); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message([](auto& a) { a.hidden = a.hidden.slice(0, 0, 3); }), "hidden"));
  EXPECT_TRUE(has(message([](auto& a) { a.acc = a.acc.slice(1, 0, 8); }), "w2 of the shared"));
  EXPECT_TRUE(has(message([](auto& a) { a.logits = a.logits.slice(1, 0, 3); }), "logits"));
  EXPECT_TRUE(has(message([](auto& a) { a.mirrors.count = 1; }), "other ranks"));
}

}  // namespace
}  // namespace dsv4
