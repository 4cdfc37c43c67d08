#include "dsv4/ops/sparse_mla/sparse_mla.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "dsv4/ops/sparse_mla/sparse_mla_oracle.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t t = 1, h = 1, window = 0, compressed = 0;
  KvLayout layout{};
  bool packed = true;
  DType dtype = DType::kF32;
  double invalid = 0.2;  // share of -1 in the lists
};

// Every byte of the pool is NaN (0xff) until a row is filled.
KvPool make_pool(Arena& arena, const KvLayout& layout, int64_t pages, int entries, bool packed) {
  KvPool pool{.layout = layout, .page_entries = entries};
  pool.pages = packed ? arena.input(DType::kU8, {pages, layout.page_bytes(entries)})
                      : arena.input(DType::kF32, {pages, int64_t{entries} * layout.width()});
  std::fill_n(pool.pages.data, pool.pages.bytes(), std::byte{0xff});
  return pool;
}

void fill_row(const KvPool& pool, int64_t row, Rng& rng) {
  std::vector<float> x(static_cast<size_t>(pool.layout.width()));
  for (float& v : x) v = static_cast<float>(rng.normal());
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_kv_entry(pool.layout, x.data(), pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else {
    std::copy(x.begin(), x.end(), pool.pages.row<float>(page) + entry * pool.layout.width());
  }
}

// Lists `n` rows of a pool of which only the listed ones are not NaN.
KvList make_list(Arena& arena, Rng& rng, const Shape& shape, int64_t n, int entries) {
  const int64_t pages = ceil_div(2 * n + 3, entries);
  KvList list{.pool = make_pool(arena, shape.layout, pages, entries, shape.packed), .rows = {}};
  const TensorView rows = arena.input(DType::kI32, {shape.t, n});
  for (int64_t i = 0; i < shape.t * n; ++i) {
    const int64_t row = rng.below(list.pool.num_rows());
    const bool skip = rng.uniform() < shape.invalid;
    rows.as<int32_t>()[i] =
        skip ? (rng.uniform() < 0.5 ? -1 : INT32_MIN) : static_cast<int32_t>(row);
    if (!skip) fill_row(list.pool, row, rng);
  }
  list.rows = rows;
  return list;
}

SparseMlaArgs make_args(Arena& arena, Rng& rng, const Shape& shape) {
  const int64_t d = shape.layout.width();
  const TensorView q = arena.input(shape.dtype, {shape.t, shape.h, d});
  const TensorView sink = arena.input(DType::kF32, {shape.h});
  test::fill_normal(q, rng, 2.0);
  test::fill_normal(sink, rng, 2.0);
  sink.as<float>()[0] = -kInfinity;
  if (shape.h > 2) sink.as<float>()[1] = kInfinity;
  return {.q = q,
          .window = make_list(arena, rng, shape, shape.window, 64),
          .compressed = make_list(arena, rng, shape, shape.compressed, 3),
          .sink = sink,
          .scale = 1.f / std::sqrt(static_cast<float>(d)),
          .out = arena.output(shape.dtype, {shape.t, shape.h, d}),
          .lse = arena.output(DType::kF32, {shape.t, shape.h})};
}

SparseMlaArgs one_query(const SparseMlaArgs& args, int64_t i) {
  SparseMlaArgs one = args;
  one.q = args.q.slice(0, i, i + 1);
  if (args.window.rows.rank != 0) one.window.rows = args.window.rows.slice(0, i, i + 1);
  if (args.compressed.rows.rank != 0) one.compressed.rows = args.compressed.rows.slice(0, i, i + 1);
  one.out = args.out.slice(0, i, i + 1);
  one.lse = args.lse.slice(0, i, i + 1);
  return one;
}

// f32 logits are off by about 40 * 2^-24 * sum |q k| scale < 4e-5 (q of sigma 2, d = 512), and that
// is the relative error of a weight. Under kOfficial it also moves, rarely, a weight over a
// rounding boundary: by 2^-8 of itself at most, and only weights below the largest (which is
// exactly 1).
test::Tolerance tolerance(Numerics numerics, DType dtype) {
  return {.ulps = dtype == DType::kF32 ? 4.0 : 0.51,
          .rel = numerics == Numerics::kExact ? 4e-5 : 2e-3,
          .cosine = 1e-5};
}

void check_case(Arena& arena, const SparseMlaArgs& args, Numerics numerics) {
  const Context context{.numerics = numerics};
  const SparseMlaWant want = sparse_mla_oracle(context, args);
  test::OpCase<SparseMlaArgs> test{
      .name = fmt::format("sparse_mla q {} {}", to_string(args.q), name(numerics)),
      .args = args,
      .one_token = one_query,
      .num_tokens = args.q.dim(0)};
  test.outputs = {{"out", args.out, want.out, tolerance(numerics, args.out.dtype)},
                  {"lse", args.lse, want.lse, {.ulps = 2, .abs = 1e-4}}};
  check_op(sparse_mla_rows(), context, arena, test);
}

void check_shape(const Shape& shape) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    Arena arena;
    Rng rng(static_cast<uint64_t>(shape.h * 1000 + shape.window * 10 + shape.compressed));
    check_case(arena, make_args(arena, rng, shape), numerics);
  }
}

TEST(SparseMla, PackedRowsOfTheReleasedModels) {
  check_shape({.t = 2, .h = 64, .window = 128, .compressed = 200});
  check_shape({.t = 3, .h = 128, .window = 17, .compressed = 5, .dtype = DType::kBF16});
  check_shape({.t = 1, .h = 7, .window = 0, .compressed = 33});
  check_shape({.t = 5, .h = 1, .window = 31, .compressed = 0, .dtype = DType::kBF16});
}

// Enough of each for another shape of launch: queries, heads in a last block, listed rows.
TEST(SparseMla, ManyQueriesAndLongLists) {
  check_shape({.t = 140, .h = 20, .window = 70, .compressed = 3, .dtype = DType::kBF16});
  check_shape({.t = 2, .h = 16, .window = 128, .compressed = 1400, .dtype = DType::kBF16});
}

// -1s behind a list are not even a rounding: a graph keeps room for the longest list.
TEST(SparseMla, TrailingInvalidIdsChangeNothing) {
  constexpr int64_t kShort = 40, kLong = 3000;
  Arena arena;
  Rng rng(8);
  const Shape shape{.t = 1, .h = 16, .window = 30, .compressed = kShort, .dtype = DType::kBF16};
  const SparseMlaArgs args = make_args(arena, rng, shape);
  const TensorView rows = arena.input(DType::kI32, {1, kLong});
  std::fill_n(rows.as<int32_t>(), kLong, -1);
  std::copy_n(args.compressed.rows.as<int32_t>(), kShort, rows.as<int32_t>());
  SparseMlaArgs padded = args;
  padded.compressed.rows = rows;
  padded.out = arena.output(shape.dtype, {1, shape.h, 512});
  for (const Row<SparseMlaArgs>& row : sparse_mla_rows()) {
    const Context context{.device = row.arch == Arch::kCpu ? nullptr : test::gpu()};
    if (!reaches(row.arch, context) || row.reject(context, args) != nullptr) continue;
    for (const SparseMlaArgs* each : {&std::as_const(args), &std::as_const(padded)}) {
      row.run(context, *each);
      if (context.device != nullptr) test::wait(*context.device);
    }
    EXPECT_TRUE(std::equal(args.out.data, args.out.data + args.out.bytes(), padded.out.data))
        << row.name;
  }
}

TEST(SparseMla, PlainRowsOfAnyWidth) {
  for (const int rope : {0, 2, 8}) {
    for (const int nope : {1, 13, 24, 120}) {
      const KvLayout layout{.nope = nope, .rope = rope};
      check_shape(
          {.t = 4, .h = 5, .window = 9, .compressed = 6, .layout = layout, .packed = false});
    }
  }
  check_shape({.t = 2, .h = 12, .window = 128, .compressed = 64, .packed = false});
}

TEST(SparseMla, ZeroQueries) {
  check_shape({.t = 0, .h = 4, .window = 8, .compressed = 2});
}

TEST(SparseMla, QueriesWithoutRows) {
  check_shape({.t = 3, .h = 9, .window = 8, .compressed = 3, .invalid = 1.0});
  check_shape({.t = 3, .h = 9, .window = 0, .compressed = 0});
}

TEST(SparseMla, EitherListMayBeAbsent) {
  for (const bool drop_window : {false, true}) {
    Arena arena;
    Rng rng(drop_window ? 5 : 6);
    SparseMlaArgs args = make_args(arena, rng, {.t = 3, .h = 10, .window = 20, .compressed = 20});
    (drop_window ? args.window : args.compressed) = {};
    args.sink = {};
    check_case(arena, args, Numerics::kExact);
  }
}

// Which list holds a row makes no difference, only its place in the concatenation does.
TEST(SparseMla, ListsShareOneSoftmax) {
  Arena arena;
  Rng rng(3);
  const SparseMlaArgs one = make_args(arena, rng, {.t = 2, .h = 3, .window = 24, .compressed = 0});
  SparseMlaArgs two = one;
  two.out = arena.output(DType::kF32, {2, 3, 512});
  two.window.rows = one.window.rows.slice(1, 0, 10);
  two.compressed = {.pool = one.window.pool, .rows = one.window.rows.slice(1, 10, 24)};
  sparse_mla(Context{}, one);
  sparse_mla(Context{}, two);
  EXPECT_TRUE(std::equal(one.out.data, one.out.data + one.out.bytes(), two.out.data));
}

// Spec B.4: z = (1, 2), sink 0.5; keys are unit vectors, so the output is the weights.
struct TwoKeys {
  Arena arena;
  SparseMlaArgs args;

  TwoKeys() {
    const KvLayout layout{.nope = 2, .rope = 0};
    KvPool pool = make_pool(arena, layout, 1, 2, false);
    const TensorView q = arena.input(DType::kF32, {1, 1, 2}),
                     rows = arena.input(DType::kI32, {1, 2});
    const TensorView sink = arena.input(DType::kF32, {1});
    for (int i = 0; i < 2; ++i) {
      q.as<float>()[i] = static_cast<float>(i + 1);
      rows.as<int32_t>()[i] = i;
      for (int c = 0; c < 2; ++c) pool.pages.as<float>()[2 * i + c] = i == c ? 1.f : 0.f;
    }
    sink.as<float>()[0] = 0.5f;
    args = {.q = q,
            .window = {.pool = pool, .rows = rows},
            .sink = sink,
            .scale = 1.f,
            .out = arena.output(DType::kF32, {1, 1, 2}),
            .lse = arena.output(DType::kF32, {1, 1})};
  }
};

TEST(SparseMla, SpecVectorOfTheSink) {
  TwoKeys two;
  sparse_mla(Context{.numerics = Numerics::kExact}, two.args);
  EXPECT_NEAR(two.args.out.as<float>()[0], 0.231224, 1e-6);
  EXPECT_NEAR(two.args.out.as<float>()[1], 0.628532, 1e-6);
  EXPECT_NEAR(two.args.lse.as<float>()[0], std::log(std::exp(1.0) + std::exp(2.0)), 1e-6);
}

// Official weights: the numerator exp(-1) = 0.367879 becomes bf16 0.3671875, the sum keeps f32.
TEST(SparseMla, OfficialRoundsTheNumeratorOnly) {
  TwoKeys two;
  sparse_mla(Context{.numerics = Numerics::kOfficial}, two.args);
  const double sum = 1 + std::exp(-1.0) + std::exp(-1.5);
  EXPECT_NEAR(two.args.out.as<float>()[0], 0.3671875 / sum, 1e-6);
  EXPECT_NEAR(two.args.out.as<float>()[1], 1 / sum, 1e-6);
}

TEST(SparseMla, SaysWhatIsWrong) {
  TwoKeys two;
  const_cast<std::byte*>(two.args.window.rows.data)[4] = std::byte{2};
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

}  // namespace
}  // namespace dsv4
