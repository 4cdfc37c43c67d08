// The kernel of gemm/cuda/kbit_experts on the emulator: single products of listed rows against the
// oracle of expert_linear.h, and gate and up, then down, against that of experts.h. Every K in bf16
// and f16, ragged rows and columns, any routing. Bits depend neither on the order of events nor on
// the other rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/cuda/kbit_experts/call.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/kernel.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/list_rows.cuh"
#include "dsv4/ops/parts/expert_linear/expert_linear_case.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

namespace kernel = gemm::kbit_experts;
using gemm::cuda::Problem;
using gemm::cuda::RowTile;
using test::Arena;

// Rows of x of a call, by matrix.
struct List {
  TensorView tiles, count;  // [items, 3] I32, [1] I32
  int64_t items = 0;

  List(Arena& arena, const std::vector<int32_t>& rows_of, int spare) {
    std::vector<int32_t> words;
    int32_t row = 0;
    for (size_t e = 0; e < rows_of.size(); ++e) {
      const int32_t end = row + rows_of[e];
      for (; row < end; row = std::min(end, row + kernel::kTileRowsOfX)) {
        const auto rows = std::min(end - row, kernel::kTileRowsOfX);
        words.insert(words.end(), {static_cast<int32_t>(e), row, rows});
        ++items;
      }
    }
    tiles = arena.input(DType::kI32, {items + spare, 3});
    count = arena.input(DType::kI32, {1});
    std::copy(words.begin(), words.end(), tiles.as<int32_t>());
    count.as<int32_t>()[0] = static_cast<int32_t>(items);
    arena.keep_order(tiles), arena.keep_order(count);
  }
};

gemm::cuda::StridedWeight stack_of(const std::vector<WeightView>& weights,
                                   const TensorView& scale2s) {
  gemm::cuda::StridedWeight w{.format = WeightFormat::kKbit,
                              .bits = weights[0].bits,
                              .data = weights[0].data.data,
                              .scale = weights[0].scale.data,
                              .codebook = weights[0].codebook.as<float>(),
                              .row_bytes = weights[0].data.row_stride() * 4,
                              .scale_row_bytes = weights[0].scale.row_stride(),
                              .scale2s = scale2s.as<float>()};
  if (weights.size() > 1) {
    w.matrix_bytes = weights[1].data.data - weights[0].data.data;
    w.scale_matrix_bytes = weights[1].scale.data - weights[0].scale.data;
  }
  return w;
}

TensorView scale2s_of(Arena& arena, const std::vector<WeightView>& weights) {
  const TensorView scale2s = arena.input(DType::kF32, {std::ssize(weights)});
  for (size_t e = 0; e < weights.size(); ++e) scale2s.as<float>()[e] = weights[e].scale2;
  arena.keep_order(scale2s);
  return scale2s;
}

Problem problem_of(const ConstTensorView& x, const List& list, const TensorView& out, int64_t n) {
  return {.x = x.data,
          .x_dtype = x.dtype,
          .x_stride = x.row_stride(),
          .out = out.data,
          .out_dtype = out.dtype,
          .out_stride = out.row_stride(),
          .n = static_cast<int>(n),
          .k = static_cast<int>(x.dim(1)),
          .m = out.dim(0),
          .tiles = reinterpret_cast<const RowTile*>(list.tiles.data),
          .num_tiles = list.count.as<int32_t>(),
          .max_tiles = list.tiles.dim(0),
          .tile_m = kernel::kTileRowsOfX};
}

template <int K, class X>
emulator::Kernel kernel_of(const kernel::Params& params, int sides) {
  const emulator::Launch how{.grid = params.plan.ctas,
                             .block = kernel::kThreads,
                             .shared = static_cast<size_t>(kernel::Memory<K>::kAt.bytes),
                             .pdl = true};
  emulator::Kernel made;
  kernel::with_config(params, sides, [&]<int kSides, bool kWhole>() {
    made = {how, [params] { kernel::kbit_experts_kernel<K, X, kSides, kWhole>(params); }};
  });
  return made;
}

emulator::Kernel kernel_of(const Problem& p, const gemm::GatedStep* gated, bool list_is_older,
                           int num_sms) {
  const kernel::Params params = kernel::make_params(p, gated, list_is_older, num_sms);
  constexpr decltype(&kernel_of<2, bf16>) kOf[][2] = {{kernel_of<2, bf16>, kernel_of<2, f16>},
                                                      {kernel_of<3, bf16>, kernel_of<3, f16>},
                                                      {kernel_of<4, bf16>, kernel_of<4, f16>},
                                                      {kernel_of<5, bf16>, kernel_of<5, f16>}};
  return kOf[p.weight[0].bits - kMinKbit][p.x_dtype == DType::kF16](params, p.projections);
}

struct Scene {
  int bits;
  std::vector<int32_t> rows_of;
  int64_t n, k;
  DType dtype = DType::kBF16;
  int num_sms = 2;
};

// One product: after a kernel that writes x and the list, and before one that reads and writes all
// that it reads and writes.
struct Single {
  Arena arena;
  std::vector<WeightView> weights;
  ExpertLinearArgs args;
  TensorView scale2s;
  List list;

  Single(const Scene& s, Rng rng)
      : weights(test::random_stack(arena, rng, {WeightFormat::kKbit, s.bits}, std::ssize(s.rows_of),
                                   s.n, s.k)),
        args(test::random_expert_linear(arena, rng, s.dtype, weights, s.rows_of)),
        scale2s(scale2s_of(arena, weights)),
        list(arena, s.rows_of, 3) {}

  void run(int num_sms, uint64_t seed) const {
    Problem p = problem_of(args.x, list, args.out, args.out.dim(1));
    p.weight[0] = stack_of(weights, scale2s);
    emulator::launch_stream({emulator::touching({args.x, list.tiles, list.count}),
                             kernel_of(p, nullptr, false, num_sms),
                             emulator::touching({args.x, args.out, list.tiles, list.count})},
                            seed);
  }
};

void check(const Scene& s, int runs = 1) {
  SCOPED_TRACE(fmt::format("k{} rows={} n={} k={} {}", s.bits, fmt::join(s.rows_of, ","), s.n, s.k,
                           name(s.dtype)));
  const Single c(s, Rng(static_cast<uint64_t>(s.bits * 1000 + s.n * 10 + s.k)));
  const double magnitude = expert_linear_magnitude(c.args);
  const test::Tolerance tolerance{
      .ulps = 0.51,
      .abs = (0x1p-24 * (4 + std::sqrt(static_cast<double>(s.k))) + kernel::rounding(s.dtype)) *
             magnitude};
  const std::vector<double> want = expert_linear_oracle(c.args);
  emulator::check_runs(
      const_cast<Arena&>(c.arena), runs,
      [&](int seed) { c.run(s.num_sms, static_cast<uint64_t>(seed)); },
      [&] { EXPECT_EQ(test::compare(c.args.out, want, tolerance), ""); });
}

// Experts with 0, 1 and many rows, all rows at one, no rows at all.
const std::vector<std::vector<int32_t>> kRowsOf = {
    {0, 1, 0, 19, 4}, {3, 0, 0, 0, 0}, {0, 0, 0, 0, 17}, {0, 0}, {1, 1, 1, 1, 1, 1, 1}, {8, 9}};

TEST(KbitExpertsEmulated, AnyRoutingOfEveryK) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const auto& rows_of : kRowsOf)
        check({.bits = bits, .rows_of = rows_of, .n = 70, .k = 288, .dtype = dtype});
    }
  }
}

TEST(KbitExpertsEmulated, RowsAndColumns) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t k : {32, 128, 160, 416, 512, 1024, 2080})
      check({.bits = bits, .rows_of = {2, 0, 9}, .n = 37, .k = k});
    for (const int64_t n : {1, 16, 32, 100, 256, 272})
      check({.bits = bits, .rows_of = {1, 3}, .n = n, .k = 512, .dtype = DType::kF16});
    // Whole blocks: one and two tiles of rows for a warp.
    check({.bits = bits, .rows_of = {1, 0, 2, 1}, .n = 256, .k = 1024, .num_sms = 1});
    check({.bits = bits, .rows_of = {1}, .n = 128, .k = 2048, .num_sms = 8});
  }
}

TEST(KbitExpertsEmulated, AnyOrderOfEvents) {
  check({.bits = 2, .rows_of = {1, 2, 0, 11}, .n = 150, .k = 1024}, 8);
  check({.bits = 3, .rows_of = {5, 1}, .n = 128, .k = 2048}, 8);
  check({.bits = 5, .rows_of = {1, 9}, .n = 90, .k = 1056}, 8);
}

// With one column of x set at a time every weight is seen alone, in its place, at its precision.
TEST(KbitExpertsEmulated, EveryWeightInItsPlace) {
  constexpr int64_t kColumns = 160, kRows = 40, kExperts = 3;
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    Single c({.bits = bits,
              .rows_of = std::vector<int32_t>(kExperts, kColumns),
              .n = kRows,
              .k = kColumns,
              .dtype = DType::kF16},
             Rng(static_cast<uint64_t>(bits)));
    const TensorView x(c.args.x, const_cast<std::byte*>(c.args.x.data));
    for (int64_t i = 0; i < x.numel(); ++i)
      test::set_value(x, i, i / kColumns % kColumns == i % kColumns ? 1 : 0);
    c.run(2, 1);
    for (int64_t i = 0; i < c.args.out.numel(); ++i) {
      const int64_t row = i / kRows;
      const double want =
          weight_value(c.weights[static_cast<size_t>(row / kColumns)], i % kRows, row % kColumns);
      ASSERT_NEAR(test::value_at(c.args.out, i), want, 0x1.8p-10 * std::abs(want) + 0x1p-24)
          << "k" << bits << " row " << row << " of the weight " << i % kRows;
    }
  }
}

// Gate and up, then down, as the op experts runs them.
struct Chain {
  Arena arena;
  std::vector<WeightView> w1, w3, w2;
  std::vector<ExpertWeights> table;
  ExpertsArgs args;
  std::vector<int64_t> order;  // slots of tokens by expert
  std::vector<int32_t> rows_of;
  TensorView token, weight, hidden, y, scale2s[3];

  Chain(const Scene& s, int down_bits, int64_t tokens, int64_t top_k, Rng rng)
      : rows_of(s.rows_of.size()) {
    const int64_t e = std::ssize(s.rows_of), d = s.k, inner = s.n;
    w1 = test::random_stack(arena, rng, {WeightFormat::kKbit, s.bits}, e, inner, d);
    w3 = test::random_stack(arena, rng, {WeightFormat::kKbit, s.bits}, e, inner, d);
    for (size_t i = 0; i < w1.size(); ++i) w3[i].codebook = w1[i].codebook;
    w2 = test::random_stack(arena, rng, {WeightFormat::kKbit, down_bits}, e, d, inner);
    for (size_t i = 0; i < w1.size(); ++i) table.push_back({w1[i], w3[i], w2[i]});
    args = test::random_experts(arena, rng, {.t = tokens, .k = top_k, .d = d, .x = s.dtype}, table);
    args.add = false;
    const auto id = [&](int64_t i) { return args.experts.row<int32_t>(i / top_k)[i % top_k]; };
    order.resize(static_cast<size_t>(tokens * top_k));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return id(a) < id(b); });
    const int64_t pairs = tokens * top_k;
    token = arena.input(DType::kI32, {pairs}), weight = arena.input(DType::kF32, {pairs});
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t from = order[static_cast<size_t>(i)];
      token.as<int32_t>()[i] = static_cast<int32_t>(from / top_k);
      weight.as<float>()[i] = args.weights.row<float>(from / top_k)[from % top_k];
      ++rows_of[static_cast<size_t>(id(from))];
    }
    arena.keep_order(token), arena.keep_order(weight);
    hidden = arena.output(s.dtype, {pairs, inner}), y = arena.output(DType::kF32, {pairs, d});
    int i = 0;
    for (const auto* w : {&w1, &w3, &w2}) scale2s[i++] = scale2s_of(arena, *w);
  }

  void run(const List& list, int num_sms, uint64_t seed) const {
    const gemm::GatedStep gated{.weight = weight.as<float>(),
                                .limit = args.swiglu_limit,
                                .gate = static_cast<gemm::Gate>(args.activation)};
    Problem up = problem_of(args.x, list, hidden, hidden.dim(1));
    up.gather = token.as<int32_t>(), up.projections = 2;
    up.weight[0] = stack_of(w1, scale2s[0]), up.weight[1] = stack_of(w3, scale2s[1]);
    Problem down = problem_of(hidden, list, y, y.dim(1));
    down.weight[0] = stack_of(w2, scale2s[2]);
    const std::vector<ConstTensorView> lists = {list.tiles, list.count, token, weight, args.x};
    emulator::launch_stream(
        {emulator::touching(lists), kernel_of(up, &gated, false, num_sms),
         kernel_of(down, nullptr, true, num_sms),
         emulator::touching({list.tiles, list.count, token, weight, args.x, hidden, y})},
        seed);
  }

  std::vector<double> sums() const {
    std::vector<double> out(static_cast<size_t>(args.x.dim(0) * y.dim(1)));
    for (int64_t i = 0; i < y.dim(0); ++i)
      for (int64_t c = 0; c < y.dim(1); ++c)
        out[static_cast<size_t>(token.as<int32_t>()[i] * y.dim(1) + c)] +=
            static_cast<double>(y.row<float>(i)[c]);
    return out;
  }
};

void check_chain(const Scene& s, int down_bits, int64_t tokens, int64_t top_k,
                 GateActivation activation, float limit, int runs = 1) {
  SCOPED_TRACE(fmt::format("k{} and {} t={} d={} inner={} {} activation {}", s.bits, down_bits,
                           tokens, s.k, s.n, name(s.dtype), static_cast<int>(activation)));
  Chain c(s, down_bits, tokens, top_k, Rng(static_cast<uint64_t>(s.bits * 100 + s.n)));
  c.args.activation = activation, c.args.swiglu_limit = limit;
  const List list(c.arena, c.rows_of, 2);
  const std::vector<double> want = experts_oracle({.numerics = Numerics::kExact}, c.args);
  const double most = kernel::rounding(s.dtype) * experts_magnitude(c.args);
  emulator::check_runs(
      c.arena, runs, [&](int seed) { c.run(list, s.num_sms, static_cast<uint64_t>(seed)); },
      [&] {
        const std::vector<double> got = c.sums();
        double difference = 0, error = 0, all = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          difference = std::max(difference, std::abs(got[i] - want[i]));
          error += (got[i] - want[i]) * (got[i] - want[i]), all += want[i] * want[i];
        }
        EXPECT_LE(difference, most);
        // Each of the three weights and h may be wrong by as much, but rarely all in one direction.
        // A codebook has few values, so errors of a weight are not independent.
        EXPECT_LE(std::sqrt(error), 2 * kernel::rounding(s.dtype) * std::sqrt(all));
      });
}

TEST(KbitExpertsEmulated, GateUpAndDown) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Scene s{.bits = bits, .rows_of = std::vector<int32_t>(5), .n = 96, .k = 160, .dtype = dtype};
      check_chain(s, bits == 5 ? 2 : bits + 1, 5, 3, GateActivation::kSilu, 1.5f);
      s.n = 256, s.k = 512;  // whole blocks
      check_chain(s, bits, 1, 4, GateActivation::kSilu, 0.f);
    }
  }
  const Scene s{.bits = 3, .rows_of = std::vector<int32_t>(3), .n = 64, .k = 96};
  check_chain(s, 3, 9, 2, GateActivation::kGelu, 0.f);
  check_chain(s, 3, 9, 2, GateActivation::kGeluTanh, 0.7f, 8);
}

// A row's bits are the same alone, and beside rows with other values, NaN included, at other places
// of other items.
TEST(KbitExpertsEmulated, RowsDoNotSeeEachOther) {
  for (const int bits : {3, 4}) {
    const Scene scene{.bits = bits, .rows_of = {2, 0, 11}, .n = 150, .k = 1056};
    Single c(scene, Rng(5));
    // f32: the order of additions shows.
    c.args.out = c.arena.output(DType::kF32, {c.args.out.dim(0), scene.n});
    c.run(2, 1);
    constexpr int64_t kRow = 11;  // the second item of the last expert
    for (const std::vector<int32_t>& rows_of :
         {std::vector<int32_t>{0, 0, 1}, {8, 3, 5}, {0, 0, 24}}) {
      const int64_t rows = std::accumulate(rows_of.begin(), rows_of.end(), int64_t{0});
      const TensorView other = c.arena.input(DType::kBF16, {rows, scene.k});
      for (int64_t i = 0; i < other.numel(); ++i) test::set_value(other, i, NAN);
      std::memcpy(other.row<uint16_t>(rows - 1), c.args.x.row<uint16_t>(kRow),
                  static_cast<size_t>(scene.k) * 2);
      const TensorView out = c.arena.output(DType::kF32, {rows, scene.n});
      const List list(c.arena, rows_of, 0);
      Problem p = problem_of(other, list, out, scene.n);
      p.weight[0] = stack_of(c.weights, c.scale2s);
      emulator::launch_stream({kernel_of(p, nullptr, false, 5)}, 2);
      EXPECT_TRUE(std::ranges::equal(std::span(c.args.out.row<uint32_t>(kRow), scene.n),
                                     std::span(out.row<uint32_t>(rows - 1), scene.n)));
    }
  }
}

// The list that is made from offsets, after a kernel that writes them and before the product.
TEST(KbitExpertsEmulated, ListsSortedRows) {
  std::vector<std::vector<int32_t>> all = kRowsOf;
  std::vector<int32_t>& many = all.emplace_back(75);  // of three warps
  many[1] = 9, many[31] = 1, many[40] = 2, many[74] = 3;
  for (const std::vector<int32_t>& rows_of : all) {
    const Scene scene{.bits = 3, .rows_of = rows_of, .n = 20, .k = 96};
    Single c(scene, Rng(7));
    const int64_t rows = c.args.x.dim(0), matrices = std::ssize(rows_of);
    const TensorView tiles = c.arena.output(DType::kI32, {std::max<int64_t>(rows, 1), 3});
    const TensorView count = c.arena.output(DType::kI32, {1});
    const TensorView scale2s = c.arena.output(DType::kF32, {matrices});
    const kernel::RowList to{.tiles = reinterpret_cast<RowTile*>(tiles.data),
                             .num_tiles = count.as<int32_t>(),
                             .scale2s = scale2s.as<float>()};
    kernel::Scale2s given{};
    for (int64_t i = 0; i < matrices; ++i) given.of[i] = c.weights[static_cast<size_t>(i)].scale2;
    Problem p = problem_of(c.args.x, c.list, c.args.out, scene.n);
    p.tiles = to.tiles, p.num_tiles = to.num_tiles, p.max_tiles = tiles.dim(0);
    p.weight[0] = stack_of(c.weights, scale2s);
    c.arena.freeze();
    c.arena.prepare();
    const auto* const offsets = c.args.offsets.as<int32_t>();
    ASSERT_NO_THROW(emulator::launch_stream(
        {emulator::touching({c.args.offsets, c.args.x}),
         {{.block = kSelectThreads, .pdl = true},
          [&] { kernel::list_rows_kernel(given, offsets, static_cast<int>(matrices), to); }},
         kernel_of(p, nullptr, false, 2),
         emulator::touching({tiles, count, scale2s, c.args.out})},
        3));
    c.arena.verify();
    ASSERT_EQ(count.as<int32_t>()[0], c.list.items);
    EXPECT_EQ(std::memcmp(tiles.data, c.list.tiles.data, static_cast<size_t>(c.list.items) * 12),
              0);
    const double magnitude = expert_linear_magnitude(c.args);
    EXPECT_EQ(test::compare(c.args.out, expert_linear_oracle(c.args),
                            {.ulps = 0.51, .abs = kernel::rounding(scene.dtype) * magnitude}),
              "");
  }
}

}  // namespace
}  // namespace dsv4
