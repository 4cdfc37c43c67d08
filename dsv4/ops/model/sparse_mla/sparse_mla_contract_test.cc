// What the formula implies, and the errors of wrong arguments. Grids of shapes: sparse_mla_test.cc.

#include <functional>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::Outputs;
using test::Rows;
using test::Shape;

// Invalid indices after the last valid one change no bit in batch-invariant implementations: a
// graph has room for the longest list.
void check_trailing_invalid_indices(int64_t window, int64_t valid) {
  constexpr int64_t kLong = 3000;
  Arena arena;
  Rng rng(8);
  const Shape shape{.t = 1, .h = 16, .window = window, .compressed = valid, .dtype = DType::kBF16};
  Outputs whole;
  const SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
  const auto with_room = [&](const ConstTensorView& ids, int64_t slots) {
    const TensorView rows = arena.input(DType::kI32, {1, 1, slots});
    std::fill_n(rows.as<int32_t>(), slots, -1);
    std::copy_n(ids.as<int32_t>(), ids.numel(), rows.as<int32_t>());
    return rows;
  };
  SparseMlaArgs padded = args;
  padded.window.indices = with_room(args.window.indices, 128);
  padded.compressed.indices = with_room(args.compressed.indices, kLong);
  padded.out = arena.output(shape.dtype, {1, 1, shape.h, 512});
  for (const Impl<SparseMlaArgs>& impl : sparse_mla.impls) {
    const Context context{.device = impl.arch == Arch::kCpu ? nullptr : test::gpu()};
    if (!impl.batch_invariant) continue;
    if (!reaches(impl.arch, context) || impl.reject(context, args) != nullptr) continue;
    for (const SparseMlaArgs* each : {&std::as_const(args), &std::as_const(padded)}) {
      impl.run(context, *each);
      if (context.device != nullptr) test::wait(*context.device);
    }
    EXPECT_TRUE(std::equal(args.out.data, args.out.data + args.out.bytes(), padded.out.data))
        << impl.name << ", " << valid;
  }
}

TEST(SparseMlaContract, IgnoresTrailingInvalidIndices) {
  check_trailing_invalid_indices(30, 40);
  // A window that is not full has a few compressed entries after it at most.
  for (const int64_t valid : {400, 1500}) check_trailing_invalid_indices(128, valid);
}

// Two partials combined in double: the output of the whole list.
std::vector<double> combined(const SparseMlaArgs& a, const SparseMlaArgs& b) {
  const int64_t heads = a.out.numel() / a.out.dim(-1), d_v = a.out.dim(-1);
  std::vector<double> out;
  for (int64_t i = 0; i < heads; ++i) {
    const double m[] = {test::value_at(a.max_logits, i), test::value_at(b.max_logits, i)};
    const double lse[] = {test::value_at(a.lse, i), test::value_at(b.lse, i)};
    const double top = std::max(m[0], m[1]);
    double share[2] = {}, sum = std::exp(test::value_at(a.sink, i % a.sink.dim(0)) - top);
    for (int p = 0; p < 2; ++p) {
      if (std::isinf(m[p])) continue;
      share[p] = std::exp(m[p] - top);
      sum += std::exp(lse[p] - top);
    }
    for (int64_t c = 0; c < d_v; ++c) {
      out.push_back((share[0] * test::value_at(a.out, i * d_v + c) +
                     share[1] * test::value_at(b.out, i * d_v + c)) /
                    sum);
    }
  }
  return out;
}

TEST(SparseMlaContract, CombinedPartialsEqualTheWhole) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    Arena arena;
    Rng rng(11);
    Outputs whole;
    const Shape shape{.t = 3, .h = 16, .window = 60, .compressed = 90, .dtype = DType::kBF16};
    SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
    std::fill_n(const_cast<int32_t*>(args.window.indices.as<int32_t>()), 60, -1);  // of query 0
    args.normalized = false;
    SparseMlaArgs partials[] = {args, args};
    partials[0].compressed = {}, partials[1].window = {};
    for (SparseMlaArgs& partial : partials) {
      partial.out = arena.output(DType::kF32, {3, 1, 16, 512});
      partial.lse = arena.output(DType::kF32, {3, 16, 1});
      partial.max_logits = arena.output(DType::kF32, {3, 16, 1});
    }
    args.normalized = true;
    const Context base{.numerics = numerics};
    const std::vector<double> want = sparse_mla_oracle(base, args).out;
    const TensorView got = arena.output(DType::kF32, {3, 1, 16, 512});
    for (const Impl<SparseMlaArgs>& impl : sparse_mla.impls) {
      Context context = base;
      if (impl.arch != Arch::kCpu) context.device = test::gpu();
      if (!reaches(impl.arch, context) || impl.reject(context, partials[0]) != nullptr) continue;
      for (const SparseMlaArgs& partial : partials) {
        impl.run(context, partial);
        if (context.device != nullptr) test::wait(*context.device);
      }
      const std::vector<double> values = combined(partials[0], partials[1]);
      for (size_t i = 0; i < values.size(); ++i) {
        got.as<float>()[i] = static_cast<float>(values[i]);
      }
      EXPECT_EQ(test::compare(got, want, test::tolerance(numerics, DType::kF32)), "") << impl.name;
    }
  }
}

// Indices past the pool: an error that names them on the CPU, skipped on a device.
TEST(SparseMlaContract, IndicesPastThePool) {
  Arena arena;
  Rng rng(12);
  Outputs whole;
  const Shape shape{.t = 3, .h = 16, .window = 60, .compressed = 90, .dtype = DType::kBF16};
  const SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
  auto* ids = const_cast<int32_t*>(args.compressed.indices.as<int32_t>());
  const auto rows = static_cast<int32_t>(args.compressed.pool.num_rows());
  for (int64_t j = 5; j < 90; j += 7) ids[j] = j % 2 == 0 ? rows : INT32_MAX;
  EXPECT_NE(test::error_of([&] {
              sparse_mla(Context{}, args);
            }).find(fmt::format("compressed[0, 5] is row {} of a pool of {}", INT32_MAX, rows)),
            std::string::npos);
  const std::vector<double> want = sparse_mla_oracle(Context{}, args).out;
  for (const Impl<SparseMlaArgs>& impl : sparse_mla.impls) {
    const Context context{.device = impl.arch == Arch::kCpu ? nullptr : test::gpu()};
    if (context.device == nullptr || impl.reject(context, args) != nullptr) continue;
    impl.run(context, args);
    test::wait(*context.device);
    EXPECT_EQ(test::compare(args.out, want, test::tolerance(Numerics::kOfficial, DType::kBF16)), "")
        << impl.name;
  }
}

// Only the position in the concatenation of the two lists matters.
TEST(SparseMlaContract, ListsShareOneSoftmax) {
  Arena arena;
  Rng rng(3);
  Outputs whole;
  const SparseMlaArgs one =
      test::make_args(arena, rng, {.t = 2, .h = 3, .window = 24, .compressed = 0}, whole);
  SparseMlaArgs two = one;
  two.out = arena.output(DType::kF32, {2, 1, 3, 512});
  two.window.indices = one.window.indices.slice(2, 0, 10);
  two.compressed = {.pool = one.window.pool, .indices = one.window.indices.slice(2, 10, 24)};
  sparse_mla(Context{}, one);
  sparse_mla(Context{}, two);
  EXPECT_TRUE(std::equal(one.out.data, one.out.data + one.out.bytes(), two.out.data));
}

// docs/spec/dsv4.md B.4: z = (1, 2), sink 0.5; keys are unit vectors, so the output is P / sum.
struct TwoKeys {
  Arena arena;
  SparseMlaArgs args;

  TwoKeys() {
    const KvLayout layout{.nope = 2, .rope = 0};
    KvPool pool = test::make_pool(arena, {.layout = layout, .rows = Rows::kF32}, 1, 2);
    const TensorView q = arena.input(DType::kF32, {1, 1, 1, 2}),
                     rows = arena.input(DType::kI32, {1, 1, 2});
    const TensorView sink = arena.input(DType::kF32, {1});
    for (int i = 0; i < 2; ++i) {
      q.as<float>()[i] = static_cast<float>(i + 1);
      rows.as<int32_t>()[i] = i;
      for (int c = 0; c < 2; ++c) pool.pages.as<float>()[2 * i + c] = i == c ? 1.f : 0.f;
    }
    sink.as<float>()[0] = 0.5f;
    args = {.q = q,
            .window = {.pool = pool, .indices = rows},
            .sink = sink,
            .scale = 1.f,
            .out = arena.output(DType::kF32, {1, 1, 1, 2}),
            .lse = arena.output(DType::kF32, {1, 1, 1})};
  }
};

TEST(SparseMlaContract, SpecVectorOfTheSink) {
  TwoKeys two;
  sparse_mla(Context{.numerics = Numerics::kExact}, two.args);
  EXPECT_NEAR(two.args.out.as<float>()[0], 0.231224, 1e-6);
  EXPECT_NEAR(two.args.out.as<float>()[1], 0.628532, 1e-6);
  EXPECT_NEAR(two.args.lse.as<float>()[0], std::log(std::exp(1.0) + std::exp(2.0)), 1e-6);
}

// Official rounding: the numerator exp(-1) = 0.367879 becomes bf16 0.3671875, the sum keeps f32.
TEST(SparseMlaContract, OfficialRoundsTheNumeratorOnly) {
  TwoKeys two;
  sparse_mla(Context{.numerics = Numerics::kOfficial}, two.args);
  const double sum = 1 + std::exp(-1.0) + std::exp(-1.5);
  EXPECT_NEAR(two.args.out.as<float>()[0], 0.3671875 / sum, 1e-6);
  EXPECT_NEAR(two.args.out.as<float>()[1], 1 / sum, 1e-6);
}

TEST(SparseMlaContract, SaysWhatIsWrong) {
  TwoKeys two;
  const_cast<std::byte*>(two.args.window.indices.data)[4] = std::byte{2};
  EXPECT_NE(test::error_of([&] {
              sparse_mla(Context{}, two.args);
            }).find("window[0, 1] is row 2 of a pool of 2"),
            std::string::npos);
  TwoKeys narrow;
  narrow.args.window.pool.layout.nope = 3;
  EXPECT_NE(test::error_of([&] { sparse_mla(Context{}, narrow.args); }).find("window"),
            std::string::npos);
  TwoKeys unscaled;
  unscaled.args.scale = 0;
  EXPECT_NE(test::error_of([&] { sparse_mla(Context{}, unscaled.args); }).find("scale=0"),
            std::string::npos);
}

TEST(SparseMlaContract, SaysWhichShapeIsWrong) {
  const auto expect_error = [](const char* text, const std::function<void(TwoKeys&)>& spoil) {
    TwoKeys two;
    spoil(two);
    const std::string error = test::error_of([&] { sparse_mla(Context{}, two.args); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  expect_error("q: want [b, s_q, h, d] F32|BF16, got [1, 1, 2] F32", [](TwoKeys& two) {
    two.args.q = two.args.q.reshape({1, 1, 2});
  });
  expect_error("window: want [b=1, s_q=1, topk] I32, got [1, 2] I32", [](TwoKeys& two) {
    two.args.window.indices = two.args.window.indices.reshape({1, 2});
  });
  expect_error("out: d_v=3 of queries of 2", [](TwoKeys& two) {
    two.args.out = two.arena.output(DType::kF32, {1, 1, 1, 3});
  });
  expect_error("window.topk_length: want [b=1] I32, got [2] I32", [](TwoKeys& two) {
    two.args.window.topk_length = two.arena.input(DType::kI32, {2});
  });
  expect_error("window.topk_length: want [b=1] I32, got [1] F32", [](TwoKeys& two) {
    two.args.window.topk_length = two.arena.input(DType::kF32, {1});
  });
  expect_error("max_logits: want [b=1, h=1, s_q=1] F32, got [1, 2, 1] F32", [](TwoKeys& two) {
    two.args.max_logits = two.arena.output(DType::kF32, {1, 2, 1});
  });
  expect_error("normalized=false without max_logits",
               [](TwoKeys& two) { two.args.normalized = false; });
}

}  // namespace
}  // namespace dsv4
