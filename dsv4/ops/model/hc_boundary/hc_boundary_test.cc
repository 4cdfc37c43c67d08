#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using Shape = test::HcBoundaryShape;

HcBoundaryArgs make_args(Arena& arena, Shape s) {
  Rng rng(static_cast<uint64_t>(s.t * 100 + s.m * 10 + s.d));
  s.norm = s.dtype;
  return test::random_boundary(arena, rng, s);
}

// Every implementation makes the codes of the x that it stores.
void check_codes(const std::string& name, Arena& arena, const HcBoundaryArgs& args) {
  Scratch host_workspace;
  for (const Impl<HcBoundaryArgs>& impl : hc_boundary.impls) {
    Context context;
    if (impl.arch != Arch::kCpu) context.device = test::gpu();
    if (context.device == nullptr) context.workspace = &host_workspace;
    if (!reaches(impl.arch, context) || impl.reject(context, args) != nullptr) continue;
    SCOPED_TRACE(name + " by " + std::string(impl.name));
    arena.prepare();
    impl.run(context, args);
    if (context.device != nullptr) test::wait(*context.device);
    const QuantizeQ8Want want =
        quantize_q8_oracle({.x = args.x, .codes = args.codes, .scales = args.scales});
    EXPECT_EQ(test::compare(args.codes, want.codes, {.ulps = 0}), "");
    EXPECT_EQ(test::compare(args.scales, want.scales, {.ulps = 0}), "");
  }
}

// Streams are rounded once (tests of mhc.h). An f32 sum close to a tie may round the other way: a
// bf16 X' or x changes by 2^-8 of itself, and so does, at most, what is computed from it: an
// element of the normalized x, and a gate. That is rare: x is compared with the oracle's rounded
// values, of which nearly all are met. If x were not rounded before the norm, a third of them would
// not be, and the cosine would change by 1e-6. One element in some 30,000 is that close to a tie:
// in large cases an X' of order 4 changes by 2^-6, and a mix by as much times fn.
void check_boundary(const Shape& shape) {
  Arena arena;
  const HcBoundaryArgs args = make_args(arena, shape);
  HcBoundaryWant want = hc_boundary_oracle(args);
  const bool f32 = shape.dtype == DType::kF32;
  const test::Tolerance streams{.ulps = f32 ? 4.0 : 0.51, .rel = 5e-6};
  if (!f32) {
    for (double& v : want.x) v = oracle::bf16(v);
  }
  const test::Tolerance x = f32 ? test::Tolerance{.ulps = 4, .rel = 1e-5}
                                : test::Tolerance{.ulps = 1.01, .rel = 0x1p-8, .cosine = 2e-7};
  const bool large = shape.t * shape.m * shape.d > 10'000;
  const test::Tolerance gates{.ulps = 4, .abs = f32 ? 1e-5 : large ? 2e-3 : 1e-4};
  test::OpCase<HcBoundaryArgs> test{
      .name = fmt::format("hc_boundary t={} m={} d={} {} {}", shape.t, shape.m, shape.d,
                          name(shape.dtype), shape.first ? "first" : name(shape.y)),
      .args = args,
      .outputs = {{"streams", args.streams, want.streams, streams},
                  {"x", args.x, want.x, x},
                  {"post", args.post, want.post, gates},
                  {"comb", args.comb, want.comb, gates}},
      .one_token = test::one_token,
      .num_tokens = shape.t};
  test.strided = [](HcBoundaryArgs& a, test::StridedCopy& copy) {
    copy(a.y), copy(a.y_post), copy(a.y_comb), copy(a.streams), copy(a.x), copy(a.post),
        copy(a.comb);
    if (a.codes.rank > 0) copy(a.codes), copy(a.scales);
  };
  check_op(hc_boundary.impls, Context{}, arena, test);
  if (shape.codes) check_codes(test.name, arena, args);
}

TEST(HcBoundary, AgreesWithOracle) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const bool first : {true, false}) {
      for (const int64_t t : {0, 1, 5}) {
        check_boundary({.t = t, .m = 4, .d = 256, .first = first, .dtype = dtype});
        check_boundary({.t = t, .m = 3, .d = 37, .first = first, .dtype = dtype, .y = DType::kF32});
      }
    }
    check_boundary({.t = 3, .m = 4, .d = 4096, .dtype = dtype, .y = DType::kF32});
  }
}

// Few tokens of both models, and one more than few.
TEST(HcBoundary, FewTokens) {
  for (const int64_t t : {1, 2, 3, 4, 9, 33, 64, 65})
    check_boundary({.t = t, .m = 4, .d = 512, .first = t == 9});
  for (const int64_t t : {1, 5}) check_boundary({.t = t, .m = 4, .d = 4096});
  check_boundary({.t = 2, .m = 4, .d = 7168, .y = DType::kF32});
  check_boundary({.t = 1, .m = 4, .d = 8192, .first = true});
}

// Blocks of 64 tokens, whole and partial, of both models; several of them for a CTA.
TEST(HcBoundary, ManyTokens) {
  for (const int64_t t : {127, 128, 129}) check_boundary({.t = t, .m = 4, .d = 256});
  check_boundary({.t = 150, .m = 4, .d = 512, .first = true});
  check_boundary({.t = 100, .m = 4, .d = 512, .y = DType::kF32});
  if (test::gpu() == nullptr) return;  // on a host, many tokens are as few
  check_boundary({.t = 330, .m = 4, .d = 4096, .y = DType::kF32});
  check_boundary({.t = 70, .m = 4, .d = 7168});
}

TEST(HcBoundary, MakesCodes) {
  for (const int64_t t : {1, 9, 70}) check_boundary({.t = t, .m = 4, .d = 512, .codes = true});
  check_boundary({.t = 3, .m = 3, .d = 37, .codes = true});
  check_boundary({.t = 40, .m = 4, .d = 256, .first = true, .codes = true});
  check_boundary({.t = 3, .m = 4, .d = 256, .codes = true, .dtype = DType::kF32});
}

// The columns of y lie in three buffers, one per rank, and the call is that of the middle rank.
TEST(HcBoundary, ReadsColumnsWhereRanksHaveThem) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "on Hopper";
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    test::Arena arena;
    Rng rng(3);
    const int64_t t = 70, d = 1024, ends[] = {256, 640, 1024};
    HcBoundaryArgs args = test::random_boundary(arena, rng, {.t = t, .d = d, .y = dtype});
    const Buffer streams(DType::kBF16, {t, 4, d}), x(DType::kBF16, {t, d});
    const auto bytes = static_cast<size_t>(args.streams.bytes());
    std::memcpy(streams.view().data, args.streams.data, bytes);
    const Context context{.force_impl = "sm90_many", .device = test::gpu()};
    hc_boundary(context, args);
    test::wait(*test::gpu());
    std::vector<std::byte> want(args.x.data, args.x.data + args.x.bytes());

    const int64_t size = args.y.bytes();
    const TensorView places = arena.input(DType::kU8, {3 * size});
    std::memset(places.data, 0xff, static_cast<size_t>(3 * size));  // NaN
    const int64_t item = item_bytes(dtype);
    args.y_homes.count = 3;
    for (int r = 0; r < 3; ++r) {
      const int64_t begin = r == 0 ? 0 : ends[r - 1];
      args.y_homes.end[r] = static_cast<int32_t>(ends[r]);
      args.y_homes.distance[r] = (r - 1) * size;  // of the rank in the middle
      for (int64_t i = 0; i < t; ++i)
        std::memcpy(places.data + r * size + (i * d + begin) * item,
                    args.y.data + (i * d + begin) * item,
                    static_cast<size_t>((ends[r] - begin) * item));
    }
    args.y = ConstTensorView(TensorMeta::contiguous(dtype, {t, d}), places.data + size);
    std::memcpy(args.streams.data, streams.view().data, bytes);
    std::memset(args.x.data, 0xff, want.size());
    hc_boundary(context, args);
    test::wait(*test::gpu());
    EXPECT_EQ(std::memcmp(args.x.data, want.data(), want.size()), 0) << name(dtype);
    for (const Impl<HcBoundaryArgs>& impl : hc_boundary.impls) {
      const bool reads = impl.name == "sm90_many";
      EXPECT_TRUE(!reaches(impl.arch, context) ||
                  (reason_against(impl, {.device = test::gpu()}, args) == nullptr) == reads)
          << impl.name;
    }
  }
}

TEST(HcBoundary, ReportsErrors) {
  Arena arena;
  const HcBoundaryArgs good = make_args(arena, {.t = 2, .m = 4, .d = 8});
  const auto message = [&](auto change) {
    HcBoundaryArgs args = good;
    change(args);
    return test::error_of([&] { hc_boundary(Context{}, args); });
  };
  EXPECT_EQ(message([](auto& a) { a.y_post = {}; }),
            "y_post: want [t=2, m=4] F32, got [] F32 without data");
  EXPECT_EQ(message([](auto& a) { a.norm = a.norm.slice(0, 0, 7); }),
            "norm: want [d=8] F32|BF16, got [7] BF16");
  EXPECT_NE(message([](auto& a) { a.y_post = a.post; }).find("would be overwritten"),
            std::string::npos);
}

}  // namespace
}  // namespace dsv4
