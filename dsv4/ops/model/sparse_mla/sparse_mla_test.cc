#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

#include <cstring>
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

// Query i of all requests.
SparseMlaArgs one_query(const SparseMlaArgs& args, int64_t i) {
  const int64_t s_q = args.q.dim(1), request = i / s_q, query = i % s_q;
  SparseMlaArgs one = args;
  const auto narrow = [&](auto& view, int query_axis) {
    if (view.rank == 0) return;
    view = view.slice(0, request, request + 1);
    if (query_axis > 0) view = view.slice(query_axis, query, query + 1);
  };
  narrow(one.q, 1);
  for (KvList* list : {&one.window, &one.compressed}) {
    narrow(list->indices, 1);
    narrow(list->topk_length, 0);
  }
  narrow(one.inverse_rope.positions, 1);
  narrow(one.out, 1);
  narrow(one.lse, 2);
  narrow(one.max_logits, 2);
  return one;
}

void check_case(Arena& arena, const SparseMlaArgs& args, const Outputs& whole, Numerics numerics) {
  const Context context{.numerics = numerics};
  const SparseMlaWant want = sparse_mla_oracle(context, args);
  test::OpCase<SparseMlaArgs> test{
      .name = fmt::format("sparse_mla q {} {}", to_string(args.q), name(numerics)),
      .args = args,
      .one_token = one_query,
      .num_tokens = args.q.dim(0) * args.q.dim(1)};
  const auto add = [&](const char* name, const TensorView& view, const TensorView& all,
                       const std::vector<double>& values, const test::Tolerance& tolerance) {
    test.outputs.push_back({name, all, test::with_gaps(values, view, all), tolerance});
  };
  const test::Tolerance logits{.ulps = 2, .abs = 1e-4};
  test::Tolerance out = test::tolerance(numerics, args.out.dtype);
  // The rotation mixes two values that the store has rounded: a sum close to a tie changes one of
  // them by a step.
  if (args.inverse_rope.positions.rank > 0 && args.out.dtype == DType::kBF16) out.rel += 0x1p-8;
  add("out", args.out, whole.out, want.out, out);
  add("lse", args.lse, whole.lse, want.lse, logits);
  if (!args.max_logits.empty()) {
    add("max_logits", args.max_logits, whole.max_logits, want.max_logits, logits);
  }
  test.strided = [](SparseMlaArgs& a, test::StridedCopy& copy) {
    copy(a.q), copy(a.window.indices), copy(a.window.pool.pages), copy(a.compressed.indices),
        copy(a.compressed.pool.pages), copy(a.out), copy(a.lse), copy(a.max_logits);
  };
  check_op(sparse_mla.impls, context, arena, test);
}

void check_shape(const Shape& shape) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    Arena arena;
    Rng rng(static_cast<uint64_t>(shape.h * 1000 + shape.window * 10 + shape.compressed));
    Outputs whole;
    const SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
    check_case(arena, args, whole, numerics);
  }
}

TEST(SparseMla, PackedEntriesOfReleasedModels) {
  check_shape({.t = 2, .h = 64, .window = 128, .compressed = 200});
  check_shape({.t = 3, .h = 128, .window = 17, .compressed = 5, .dtype = DType::kBF16});
  check_shape({.t = 1, .h = 7, .window = 0, .compressed = 33});
  check_shape({.t = 5, .h = 1, .window = 31, .compressed = 0, .dtype = DType::kBF16});
}

TEST(SparseMla, InverseRopeOfTheOutput) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t s_q : {1, 3}) {
      for (const bool strided : {false, true}) {
        check_shape({.t = 3,
                     .h = 5,
                     .window = 20,
                     .compressed = 9,
                     .dtype = dtype,
                     .s_q = s_q,
                     .strided = strided,
                     .rope_pairs = 32});
      }
    }
    check_shape({.t = 0, .h = 4, .window = 8, .dtype = dtype, .rope_pairs = 32});
  }
  // Packed rows of the releases: splits, CTAs of several work tiles, a few heads.
  for (const int64_t heads : {8, 64, 70}) {
    for (const int64_t queries : {1, 3, 150}) {
      if (heads * queries > 5000) continue;
      check_shape({.t = queries,
                   .h = heads,
                   .window = 128,
                   .compressed = 100,
                   .dtype = DType::kBF16,
                   .rope_pairs = 32});
    }
  }
  check_shape({.t = 2,
               .h = 3,
               .window = 9,
               .layout = {.nope = 21, .rope = 4},
               .rows = Rows::kF32,
               .rope_pairs = 1});
}

TEST(SparseMla, ManyQueriesAndLongLists) {
  check_shape({.t = 140, .h = 20, .window = 70, .compressed = 3, .dtype = DType::kBF16});
  check_shape({.t = 2, .h = 16, .window = 128, .compressed = 1400, .dtype = DType::kBF16});
  // Other heads per CTA and other splits than for one query, but for batch-invariant ones.
  check_shape({.t = 40, .h = 64, .window = 128, .compressed = 300, .dtype = DType::kBF16});
}

// The longest lists of the peers, of either release's entries.
TEST(SparseMla, ListsOf32768) {
  check_shape({.t = 1, .h = 2, .window = 5, .compressed = 32768, .dtype = DType::kBF16});
  check_shape({.t = 1,
               .h = 3,
               .window = 32768,
               .layout = kV32Layout,
               .dtype = DType::kBF16,
               .d_v = 512,
               .lengths = true});
}

TEST(SparseMla, PlainEntriesOfAnyWidth) {
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

TEST(SparseMla, QueriesWithoutKeys) {
  check_shape({.t = 3, .h = 9, .window = 8, .compressed = 3, .invalid = 1.0});
  check_shape({.t = 3, .h = 9, .window = 0, .compressed = 0});
}

TEST(SparseMla, EntriesOfV32) {
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

TEST(SparseMla, PlainBf16Entries) {
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

// Key tiles and head groups of 64, full and partial; more queries than a device has SMs, of one key
// tile and of several; a key tile that spans both lists.
TEST(SparseMla, Bf16EntriesOfReleasedModels) {
  const Shape shape{.rows = Rows::kBF16, .dtype = DType::kBF16};
  const auto with = [&](Shape some, const KvLayout& layout) {
    some.layout = layout, some.rows = shape.rows, some.dtype = shape.dtype, some.d_v = 512;
    check_shape(some);
  };
  for (const KvLayout& layout : {KvLayout{}, kV32Layout}) {
    with({.t = 3, .h = 100, .window = 70, .compressed = 150, .s_q = 2}, layout);
    with({.t = 8, .h = 3, .window = 64, .compressed = 200, .lengths = true, .strided = true},
         layout);
    with({.t = 2, .h = 65, .compressed = 129, .normalized = false, .f32_out = true}, layout);
    with({.t = 3, .h = 9, .window = 8, .compressed = 3, .invalid = 1.0}, layout);
  }
  with({.t = 150, .h = 1, .window = 70, .s_q = 3, .lengths = true}, KvLayout{});
}

TEST(SparseMla, ValuesAreThePrefixOfAnEntry) {
  for (const int64_t d_v : {1, 31, 33, 448}) {
    check_shape({.t = 2, .h = 3, .window = 12, .compressed = 5, .d_v = d_v});
  }
}

TEST(SparseMla, StridedQueriesOfRequests) {
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

TEST(SparseMla, IgnoresIndicesPastTopkLength) {
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

TEST(SparseMla, UnnormalizedOutput) {
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

TEST(SparseMla, EitherListMayBeAbsent) {
  for (const bool drop_window : {false, true}) {
    Arena arena;
    Rng rng(drop_window ? 5 : 6);
    Outputs whole;
    SparseMlaArgs args =
        test::make_args(arena, rng, {.t = 3, .h = 10, .window = 20, .compressed = 20}, whole);
    (drop_window ? args.window : args.compressed) = {};
    args.sink = {};
    check_case(arena, args, whole, Numerics::kExact);
  }
}

// Implementations with f16 operands fall back to fp32 for values that f16 cannot hold.
void check_large(const KvLayout& layout, test::Large large) {
  Arena arena;
  Rng rng(21);
  Outputs whole;
  SparseMlaArgs args = test::make_args(arena, rng,
                                       {.t = 3,
                                        .h = 20,
                                        .window = 40,
                                        .compressed = 150,
                                        .layout = layout,
                                        .dtype = DType::kBF16,
                                        .d_v = 512},
                                       whole);
  test::put_large(large, args);
  check_case(arena, args, whole, Numerics::kOfficial);
}

TEST(SparseMla, ValuesOutsideF16) {
  for (const test::Large large : test::kLarge) {
    for (const KvLayout& layout : {KvLayout{}, kV32Layout}) check_large(layout, large);
  }
}

// Scales below the normal numbers of f16 cause no error visible in bf16.
TEST(SparseMla, SmallScales) {
  for (const int exponent : {-13, -15, -17}) {
    Arena arena;
    Rng rng(22);
    Outputs whole;
    const SparseMlaArgs args = test::make_args(
        arena, rng, {.t = 2, .h = 16, .compressed = 70, .dtype = DType::kBF16, .invalid = 0},
        whole);
    const KvPool& pool = args.compressed.pool;
    for (int64_t page = 0; page < pool.pages.dim(0); ++page) {
      for (int64_t entry = 0; entry < pool.page_entries; ++entry) {
        uint8_t* scales =
            pool.pages.row<uint8_t>(page) + pool.layout.scale_offset(pool.page_entries, entry);
        std::fill_n(scales, pool.layout.num_scales(), static_cast<uint8_t>(127 + exponent));
      }
    }
    check_case(arena, args, whole, Numerics::kOfficial);
  }
}

}  // namespace
}  // namespace dsv4
