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

enum class Rows { kPacked, kF32, kBF16 };

struct Shape {
  int64_t t = 1, h = 1, window = 0, compressed = 0;  // t: requests
  KvLayout layout{};
  Rows rows = Rows::kPacked;
  DType dtype = DType::kF32;
  double invalid = 0.2;  // share of -1 in the lists
  int64_t s_q = 0;       // queries of a request; 0: one, and views without that axis
  int64_t d_v = 0;       // 0: d
  bool lengths = false;  // lists with lengths, some 0, below 0 or beyond the list
  bool strided = false;  // gaps in every view
  bool normalized = true;

  int64_t queries() const { return t * std::max<int64_t>(s_q, 1); }
};

// [.., n] with or without a gap behind each n, of which every byte is 0xff: NaN, or no row.
TensorView with_gap(Arena& arena, DType dtype, const std::vector<int64_t>& shape, bool gap) {
  const int64_t n = shape.back(), padded = n + (gap ? 16 : 0);
  const auto make = [&](std::initializer_list<int64_t> dims) { return arena.input(dtype, dims); };
  TensorView view;
  if (shape.size() == 2) view = make({shape[0], padded});
  if (shape.size() == 3) view = make({shape[0], shape[1], padded});
  if (shape.size() == 4) view = make({shape[0], shape[1], shape[2], padded});
  std::fill_n(view.data, view.bytes(), std::byte{0xff});
  return view.slice(view.rank - 1, 0, n);
}

// The axes of queries, then the others.
std::vector<int64_t> query_axes(const Shape& shape, std::initializer_list<int64_t> others) {
  std::vector<int64_t> axes{shape.t};
  if (shape.s_q > 0) axes.push_back(shape.s_q);
  axes.insert(axes.end(), others);
  return axes;
}

// Row `i` of a view seen as [numel / last, last], whatever its gaps.
template <class T>
T* row_of(const TensorView& view, int64_t i) {
  T* row = view.as<T>();
  for (int axis = view.rank - 2; axis >= 0; --axis) {
    row += i % view.dim(axis) * view.stride[static_cast<size_t>(axis)];
    i /= view.dim(axis);
  }
  return row;
}

// Every byte of the pool is NaN (0xff) until a row is filled.
KvPool make_pool(Arena& arena, const Shape& shape, int64_t pages, int entries) {
  const int64_t width = int64_t{entries} * shape.layout.width();
  KvPool pool{.layout = shape.layout, .page_entries = entries};
  if (shape.rows == Rows::kPacked) {
    pool.pages =
        with_gap(arena, DType::kU8, {pages, shape.layout.page_bytes(entries)}, shape.strided);
  } else {
    const DType dtype = shape.rows == Rows::kF32 ? DType::kF32 : DType::kBF16;
    pool.pages = with_gap(arena, dtype, {pages, width}, shape.strided);
  }
  return pool;
}

void fill_row(const KvPool& pool, int64_t row, Rng& rng) {
  const int64_t width = pool.layout.width();
  std::vector<float> x(static_cast<size_t>(width));
  for (float& v : x) v = static_cast<float>(rng.normal());
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_kv_entry(pool.layout, x.data(), pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else if (pool.pages.dtype == DType::kF32) {
    std::copy(x.begin(), x.end(), pool.pages.row<float>(page) + entry * width);
  } else {
    std::transform(x.begin(), x.end(), pool.pages.row<uint16_t>(page) + entry * width, f32_to_bf16);
  }
}

// Ids that nobody may look at.
int32_t garbage(Rng& rng, int64_t num_rows) {
  const int64_t choices[] = {rng.below(num_rows), num_rows, INT32_MAX, INT32_MIN, -1};
  return static_cast<int32_t>(choices[rng.below(5)]);
}

// Lists `n` rows of a pool of which only the listed ones are not NaN.
KvList make_list(Arena& arena, Rng& rng, const Shape& shape, int64_t n, int entries) {
  const int64_t pages = ceil_div(2 * n + 3, entries);
  KvList list{.pool = make_pool(arena, shape, pages, entries), .rows = {}};
  TensorView lengths;
  if (shape.lengths) {
    lengths = arena.input(DType::kI32, {shape.t});
    for (int64_t i = 0; i < shape.t; ++i) {
      const int64_t choices[] = {rng.below(n + 1), rng.below(n + 1), 0, n + 5, -3};
      lengths.as<int32_t>()[i] = static_cast<int32_t>(choices[i % 5]);
    }
    list.lengths = lengths;
  }
  const TensorView rows = with_gap(arena, DType::kI32, query_axes(shape, {n}), shape.strided);
  for (int64_t i = 0; i < shape.queries(); ++i) {
    const int64_t request = i / std::max<int64_t>(shape.s_q, 1);
    const int64_t length = shape.lengths ? lengths.as<int32_t>()[request] : n;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t row = rng.below(list.pool.num_rows());
      int32_t& id = row_of<int32_t>(rows, i)[j];
      if (j >= length) {
        id = garbage(rng, list.pool.num_rows());
      } else if (rng.uniform() < shape.invalid) {
        id = rng.uniform() < 0.5 ? -1 : INT32_MIN;
      } else {
        id = static_cast<int32_t>(row);
        fill_row(list.pool, row, rng);
      }
    }
  }
  list.rows = rows;
  return list;
}

// Whole buffers; the arguments have the views in front of the gaps.
struct Outputs {
  TensorView out, lse, max_logits;
};

SparseMlaArgs make_args(Arena& arena, Rng& rng, const Shape& shape, Outputs& whole) {
  const int64_t d = shape.layout.width(), d_v = shape.d_v > 0 ? shape.d_v : d;
  const int64_t gap = shape.strided ? 16 : 0;
  const TensorView q = with_gap(arena, shape.dtype, query_axes(shape, {shape.h, d}), shape.strided);
  for (int64_t i = 0; i < shape.queries() * shape.h; ++i) {
    const int64_t offset = shape.dtype == DType::kF32 ? row_of<float>(q, i) - q.as<float>()
                                                      : row_of<uint16_t>(q, i) - q.as<uint16_t>();
    for (int64_t c = 0; c < d; ++c) test::set_value(q, offset + c, 2.0 * rng.normal());
  }
  const TensorView sink = arena.input(DType::kF32, {shape.h});
  test::fill_normal(sink, rng, 2.0);
  sink.as<float>()[0] = -kInfinity;
  if (shape.h > 2) sink.as<float>()[1] = kInfinity;
  if (shape.s_q > 0) {
    whole = {arena.output(shape.dtype, {shape.t, shape.s_q, shape.h, d_v + gap}),
             arena.output(DType::kF32, {shape.t, shape.h, shape.s_q + gap}),
             arena.output(DType::kF32, {shape.t, shape.h, shape.s_q + gap})};
  } else {
    whole = {arena.output(shape.dtype, {shape.t, shape.h, d_v + gap}),
             arena.output(DType::kF32, {shape.t, shape.h + gap}),
             arena.output(DType::kF32, {shape.t, shape.h + gap})};
  }
  const auto front = [&](const TensorView& view, int64_t n) {
    return view.slice(view.rank - 1, 0, n);
  };
  const int64_t sums = shape.s_q > 0 ? shape.s_q : shape.h;
  return {.q = q,
          .window = make_list(arena, rng, shape, shape.window, 64),
          .compressed = make_list(arena, rng, shape, shape.compressed, 3),
          .sink = sink,
          .scale = 1.f / std::sqrt(static_cast<float>(d)),
          .normalized = shape.normalized,
          .out = front(whole.out, d_v),
          .lse = front(whole.lse, sums),
          .max_logits = front(whole.max_logits, sums)};
}

// Query i: a request, or a slot of one.
SparseMlaArgs one_query(const SparseMlaArgs& args, int64_t i) {
  const bool slots = args.q.rank == 4;
  const int64_t s_q = slots ? args.q.dim(1) : 1, request = i / s_q, slot = i % s_q;
  SparseMlaArgs one = args;
  const auto narrow = [&](auto& view, int slot_axis) {
    if (view.rank == 0) return;
    view = view.slice(0, request, request + 1);
    if (slots && slot_axis > 0) view = view.slice(slot_axis, slot, slot + 1);
  };
  narrow(one.q, 1);
  for (KvList* list : {&one.window, &one.compressed}) {
    narrow(list->rows, 1);
    narrow(list->lengths, 0);
  }
  narrow(one.out, 1);
  narrow(one.lse, 2);
  narrow(one.max_logits, 2);
  return one;
}

// What the oracle says, with the poison that has to stay in the gaps.
std::vector<double> with_gaps(const std::vector<double>& want, int64_t n, int64_t padded) {
  std::vector<double> all;
  for (size_t i = 0; i < want.size(); i += static_cast<size_t>(n)) {
    all.insert(all.end(), want.begin() + static_cast<int64_t>(i),
               want.begin() + static_cast<int64_t>(i) + n);
    all.resize(all.size() + static_cast<size_t>(padded - n), std::nan(""));
  }
  return all;
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

void check_case(Arena& arena, const SparseMlaArgs& args, const Outputs& whole, Numerics numerics) {
  const Context context{.numerics = numerics};
  const SparseMlaWant want = sparse_mla_oracle(context, args);
  test::OpCase<SparseMlaArgs> test{
      .name = fmt::format("sparse_mla q {} {}", to_string(args.q), name(numerics)),
      .args = args,
      .one_token = one_query,
      .num_tokens = args.q.rank == 4 ? args.q.dim(0) * args.q.dim(1) : args.q.dim(0)};
  const auto add = [&](const char* name, const TensorView& view, const TensorView& all,
                       const std::vector<double>& values, const test::Tolerance& tolerance) {
    test.outputs.push_back({name, all, with_gaps(values, view.dim(-1), all.dim(-1)), tolerance});
  };
  const test::Tolerance logits{.ulps = 2, .abs = 1e-4};
  add("out", args.out, whole.out, want.out, tolerance(numerics, args.out.dtype));
  add("lse", args.lse, whole.lse, want.lse, logits);
  if (!args.max_logits.empty()) {
    add("max_logits", args.max_logits, whole.max_logits, want.max_logits, logits);
  }
  check_op(sparse_mla_rows(), context, arena, test);
}

void check_shape(const Shape& shape) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    Arena arena;
    Rng rng(static_cast<uint64_t>(shape.h * 1000 + shape.window * 10 + shape.compressed));
    Outputs whole;
    const SparseMlaArgs args = make_args(arena, rng, shape, whole);
    check_case(arena, args, whole, numerics);
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
  Outputs whole;
  const SparseMlaArgs args = make_args(arena, rng, shape, whole);
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
          {.t = 4, .h = 5, .window = 9, .compressed = 6, .layout = layout, .rows = Rows::kF32});
    }
  }
  check_shape({.t = 2, .h = 12, .window = 128, .compressed = 64, .rows = Rows::kF32});
}

TEST(SparseMla, ZeroQueries) {
  check_shape({.t = 0, .h = 4, .window = 8, .compressed = 2});
  check_shape({.t = 0, .h = 4, .window = 8, .compressed = 2, .s_q = 2});
}

TEST(SparseMla, QueriesWithoutRows) {
  check_shape({.t = 3, .h = 9, .window = 8, .compressed = 3, .invalid = 1.0});
  check_shape({.t = 3, .h = 9, .window = 0, .compressed = 0});
}

TEST(SparseMla, RowsOfV32) {
  check_shape(
      {.t = 2, .h = 64, .window = 130, .layout = kV32Layout, .dtype = DType::kBF16, .d_v = 512});
  check_shape({.t = 3,
               .h = 5,
               .window = 9,
               .compressed = 33,
               .layout = kV32Layout,
               .s_q = 2,
               .d_v = 512,
               .lengths = true,
               .strided = true});
  const KvLayout small{.nope = 128, .rope = 6, .format = KvRowFormat::kV32};
  check_shape({.t = 2, .h = 3, .window = 7, .compressed = 5, .layout = small});
}

TEST(SparseMla, PlainRowsOfBf16) {
  check_shape({.t = 2,
               .h = 64,
               .window = 130,
               .layout = kV32Layout,
               .rows = Rows::kBF16,
               .dtype = DType::kBF16,
               .d_v = 512});
  check_shape({.t = 3,
               .h = 5,
               .window = 9,
               .compressed = 33,
               .layout = {.nope = 21, .rope = 4},
               .rows = Rows::kBF16,
               .s_q = 2,
               .d_v = 11,
               .lengths = true,
               .strided = true});
}

TEST(SparseMla, ValuesMayBeTheFirstOfARow) {
  for (const int64_t d_v : {1, 31, 33, 448}) {
    check_shape({.t = 2, .h = 3, .window = 12, .compressed = 5, .d_v = d_v});
  }
}

TEST(SparseMla, QueriesByRequestWithGapsEverywhere) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t s_q : {1, 3}) {
      check_shape({.t = 4,
                   .h = 20,
                   .window = 40,
                   .compressed = 30,
                   .dtype = dtype,
                   .s_q = s_q,
                   .strided = true});
    }
  }
  check_shape({.t = 3, .h = 17, .window = 9, .compressed = 20, .strided = true});
}

// A block of the tensor core row takes 1,280 slots: lists on both sides of that.
TEST(SparseMla, NothingBehindALengthIsLookedAt) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_shape({.t = 6, .h = 16, .window = 40, .compressed = 50, .dtype = dtype, .lengths = true});
  }
  check_shape({.t = 4,
               .h = 16,
               .window = 30,
               .compressed = 1500,
               .dtype = DType::kBF16,
               .lengths = true,
               .strided = true});
  check_shape({.t = 5,
               .h = 18,
               .window = 30,
               .compressed = 60,
               .dtype = DType::kBF16,
               .s_q = 2,
               .lengths = true,
               .strided = true});
}

TEST(SparseMla, PartsThatSomebodyMerges) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_shape({.t = 6,
                 .h = 16,
                 .window = 40,
                 .compressed = 50,
                 .dtype = dtype,
                 .s_q = 2,
                 .lengths = true,
                 .normalized = false});
  }
  check_shape({.t = 1,
               .h = 16,
               .window = 128,
               .compressed = 1400,
               .dtype = DType::kBF16,
               .normalized = false});
  check_shape({.t = 3, .h = 9, .window = 8, .compressed = 3, .invalid = 1.0, .normalized = false});
}

// Two parts and what the whole has: in double, by the formula of merging.
std::vector<double> merged(const SparseMlaArgs& a, const SparseMlaArgs& b) {
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

TEST(SparseMla, MergedPartsAreTheWhole) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    Arena arena;
    Rng rng(11);
    Outputs whole;
    const Shape shape{.t = 3, .h = 16, .window = 60, .compressed = 90, .dtype = DType::kBF16};
    SparseMlaArgs args = make_args(arena, rng, shape, whole);
    std::fill_n(const_cast<int32_t*>(args.window.rows.as<int32_t>()), 60, -1);  // of query 0
    args.normalized = false;
    SparseMlaArgs parts[] = {args, args};
    parts[0].compressed = {}, parts[1].window = {};
    for (SparseMlaArgs& part : parts) {
      part.out = arena.output(DType::kF32, {3, 16, 512});
      part.lse = arena.output(DType::kF32, {3, 16});
      part.max_logits = arena.output(DType::kF32, {3, 16});
    }
    args.normalized = true;
    const Context base{.numerics = numerics};
    const std::vector<double> want = sparse_mla_oracle(base, args).out;
    const TensorView got = arena.output(DType::kF32, {3, 16, 512});
    for (const Row<SparseMlaArgs>& row : sparse_mla_rows()) {
      Context context = base;
      if (row.arch != Arch::kCpu) context.device = test::gpu();
      if (!reaches(row.arch, context) || row.reject(context, parts[0]) != nullptr) continue;
      for (const SparseMlaArgs& part : parts) {
        row.run(context, part);
        if (context.device != nullptr) test::wait(*context.device);
      }
      const std::vector<double> values = merged(parts[0], parts[1]);
      for (size_t i = 0; i < values.size(); ++i) {
        got.as<float>()[i] = static_cast<float>(values[i]);
      }
      EXPECT_EQ(test::compare(got, want, tolerance(numerics, DType::kF32)), "") << row.name;
    }
  }
}

// Ids that the pool does not have: an error that names them on the CPU, skipped on a device.
TEST(SparseMla, IdsBeyondThePool) {
  Arena arena;
  Rng rng(12);
  Outputs whole;
  const Shape shape{.t = 3, .h = 16, .window = 60, .compressed = 90, .dtype = DType::kBF16};
  const SparseMlaArgs args = make_args(arena, rng, shape, whole);
  auto* ids = const_cast<int32_t*>(args.compressed.rows.as<int32_t>());
  const auto rows = static_cast<int32_t>(args.compressed.pool.num_rows());
  for (int64_t j = 5; j < 90; j += 7) ids[j] = j % 2 == 0 ? rows : INT32_MAX;
  EXPECT_NE(test::error_of([&] {
              sparse_mla(Context{}, args);
            }).find(fmt::format("compressed[0, 5] is row {} of a pool of {}", INT32_MAX, rows)),
            std::string::npos);
  const std::vector<double> want = sparse_mla_oracle(Context{}, args).out;
  for (const Row<SparseMlaArgs>& row : sparse_mla_rows()) {
    const Context context{.device = row.arch == Arch::kCpu ? nullptr : test::gpu()};
    if (context.device == nullptr || row.reject(context, args) != nullptr) continue;
    row.run(context, args);
    test::wait(*context.device);
    EXPECT_EQ(test::compare(args.out, want, tolerance(Numerics::kOfficial, DType::kBF16)), "")
        << row.name;
  }
}

TEST(SparseMla, EitherListMayBeAbsent) {
  for (const bool drop_window : {false, true}) {
    Arena arena;
    Rng rng(drop_window ? 5 : 6);
    Outputs whole;
    SparseMlaArgs args =
        make_args(arena, rng, {.t = 3, .h = 10, .window = 20, .compressed = 20}, whole);
    (drop_window ? args.window : args.compressed) = {};
    args.sink = {};
    check_case(arena, args, whole, Numerics::kExact);
  }
}

// Which list holds a row makes no difference, only its place in the concatenation does.
TEST(SparseMla, ListsShareOneSoftmax) {
  Arena arena;
  Rng rng(3);
  Outputs whole;
  const SparseMlaArgs one =
      make_args(arena, rng, {.t = 2, .h = 3, .window = 24, .compressed = 0}, whole);
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
    KvPool pool = make_pool(arena, {.layout = layout, .rows = Rows::kF32}, 1, 2);
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

TEST(SparseMla, SaysWhichShapeIsWrong) {
  const auto expect_error = [](const char* text, const std::function<void(TwoKeys&)>& spoil) {
    TwoKeys two;
    spoil(two);
    const std::string error = test::error_of([&] { sparse_mla(Context{}, two.args); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  expect_error("q: want [t, h, d] or [b, s_q, h, d], got [1, 2] F32", [](TwoKeys& two) {
    two.args.q = two.args.q.reshape({1, 2});
  });
  expect_error("window: want rank 3 beside q [1, 1, 1, 2] F32, got [1, 2] I32", [](TwoKeys& two) {
    two.args.q = two.args.q.reshape({1, 1, 1, 2});
  });
  expect_error("out: d_v=3 of queries of 2", [](TwoKeys& two) {
    two.args.out = two.arena.output(DType::kF32, {1, 1, 3});
  });
  expect_error("window.lengths: want [b=1] I32, got [2] I32",
               [](TwoKeys& two) { two.args.window.lengths = two.arena.input(DType::kI32, {2}); });
  expect_error("window.lengths: want [b=1] I32, got [1] F32",
               [](TwoKeys& two) { two.args.window.lengths = two.arena.input(DType::kF32, {1}); });
  expect_error("max_logits: want [b=1, h=1, s_q=1] F32, got [1, 2, 1] F32", [](TwoKeys& two) {
    two.args.max_logits = two.arena.output(DType::kF32, {1, 2});
  });
  expect_error("normalized=false without max_logits",
               [](TwoKeys& two) { two.args.normalized = false; });
}

}  // namespace
}  // namespace dsv4
