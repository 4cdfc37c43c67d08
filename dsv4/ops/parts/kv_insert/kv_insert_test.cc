#include "dsv4/ops/parts/kv_insert/kv_insert.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/formats/pack_index_key.h"
#include "dsv4/formats/pack_kv_entry.h"
#include "dsv4/ops/parts/kv_insert/kv_insert_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

// The expected contents of the pool, by the scalar packers of formats/; all other bytes are
// untouched.
void pack(const KvPool& pool, int64_t row, const float* x) {
  pack_kv_entry(pool.layout, x, pool.pages.row<uint8_t>(row / pool.page_entries), pool.page_entries,
                row % pool.page_entries);
}
void pack(const IndexPool& pool, int64_t row, const float* x) {
  pack_index_key(pool.layout, x, pool.pages.row<uint8_t>(row / pool.page_entries),
                 pool.page_entries, row % pool.page_entries);
}

template <class Args>
std::vector<double> pool_after(const Args& args) {
  Arena arena;
  const int64_t width = test::width_of(args.pool), n = args.pool.pages.numel();
  auto pool = args.pool;
  pool.pages = arena.inout(args.pool.pages.dtype, {args.pool.pages.dim(0), args.pool.pages.dim(1)});
  std::fill_n(pool.pages.data, pool.pages.bytes(), test::kUntouched);
  std::vector<float> x(static_cast<size_t>(width));
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    const int32_t row = args.rows.template as<int32_t>()[i];
    if (row < 0) continue;
    for (int64_t c = 0; c < width; ++c) {
      x[static_cast<size_t>(c)] = static_cast<float>(test::value_at(args.x, i * width + c));
    }
    if (pool.packed()) {
      pack(pool, row, x.data());
    } else {
      std::copy(x.begin(), x.end(), pool.pages.template as<float>() + row * width);
    }
  }
  std::vector<double> want;
  for (int64_t i = 0; i < n; ++i) want.push_back(test::value_at(pool.pages, i));
  return want;
}

template <class Args, class Pool>
Args make_args(Arena& arena, const Pool& pool, int64_t n, DType dtype) {
  Rng rng(static_cast<uint64_t>(n + test::width_of(pool)));
  return test::random_insert<Args>(arena, rng, pool, n, dtype);
}

// The written rows, read back in the order of the tokens.
template <class Args>
std::vector<float> read_back(const Args& args) {
  const int64_t width = test::width_of(args.pool);
  std::vector<float> values;
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    const int32_t row = args.rows.template as<int32_t>()[i];
    if (row < 0) continue;
    values.resize(values.size() + static_cast<size_t>(width));
    load_row(args.pool, row, values.data() + values.size() - width);
  }
  return values;
}

template <class Args>
void check_insert(Table<Args> table, Arena& arena, const Args& args,
                  const std::vector<double>& want) {
  test::OpCase<Args> test{.name = fmt::format("insert {}", to_string(args.x)),
                          .args = args,
                          .num_tokens = args.x.dim(0)};
  test.one_token = [](const Args& a, int64_t i) {
    return Args{.x = a.x.slice(0, i, i + 1), .rows = a.rows.slice(0, i, i + 1), .pool = a.pool};
  };
  test.outputs = {{"pool", args.pool.pages, pool_after(args), {.ulps = 0}}};
  test.strided = [](Args& a, test::StridedCopy& copy) { copy(a.x), copy(a.pool.pages); };
  check_op(table, Context{}, arena, test);
  const std::vector<float> got = read_back(args);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(static_cast<double>(got[i]), want[i]) << i;  // quantization has no tolerance
  }
}

TEST(KvInsert, AgreesWithOracle) {
  for (const bool packed : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t n : {0, 1, 37}) {
        for (const int entries : {1, 2, 64}) {
          Arena arena;
          const KvLayout layout{.nope = entries == 1 ? 64 : 448, .rope = entries == 1 ? 6 : 64};
          const KvPool pool = test::kv_pool(arena, layout, ceil_div(90, entries), entries, packed);
          const auto args = make_args<KvInsertArgs>(arena, pool, n, dtype);
          check_insert(kv_insert.impls, arena, args, kv_insert_oracle(args));
        }
      }
    }
  }
}

TEST(KvInsert, WritesV32Rows) {
  const KvLayout small{.nope = 128, .rope = 6, .format = KvRowFormat::kV32};
  for (const KvLayout& layout : {kV32Layout, small}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t n : {0, 1, 37}) {
        for (const int entries : {1, 64}) {
          Arena arena;
          const KvPool pool = test::kv_pool(arena, layout, ceil_div(90, entries), entries, true);
          const auto args = make_args<KvInsertArgs>(arena, pool, n, dtype);
          check_insert(kv_insert.impls, arena, args, kv_insert_oracle(args));
        }
      }
    }
  }
}

TEST(IndexInsert, AgreesWithOracle) {
  for (const bool packed : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t n : {0, 1, 37}) {
        for (const int entries : {1, 64}) {
          Arena arena;
          const int width = entries == 1 ? 32 : 128;
          const IndexPool pool =
              test::index_pool(arena, width, ceil_div(90, entries), entries, packed);
          const auto args = make_args<IndexInsertArgs>(arena, pool, n, dtype);
          check_insert(index_insert.impls, arena, args, index_insert_oracle(args));
        }
      }
    }
  }
}

// For NaN and infinity, too, the vector packers give the bytes of the scalar ones; 4-bit codes have
// neither.
TEST(KvInsert, NanAndInfinityPackLikeTheFormats) {
  const double odd[] = {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL, -0.0, 3e38, 1e-44};
  Arena arena;
  const auto kv =
      make_args<KvInsertArgs>(arena, test::kv_pool(arena, {}, 1, 64, true), 9, DType::kF32);
  const auto index =
      make_args<IndexInsertArgs>(arena, test::index_pool(arena, 128, 1, 64, true), 9, DType::kF32);
  const auto set = [](const ConstTensorView& x, int64_t i, double value) {
    test::set_value(TensorView(x, const_cast<std::byte*>(x.data)), i, value);
  };
  for (int64_t i = 0; i < kv.x.numel(); i += 19) set(kv.x, i, odd[i % 7]);
  for (int64_t i = 0; i < index.x.numel(); i += 19) set(index.x, i, odd[4 + i % 3]);
  kv_insert(Context{}, kv);
  index_insert(Context{}, index);
  EXPECT_EQ(test::compare(kv.pool.pages, pool_after(kv), {.ulps = 0}), "");
  EXPECT_EQ(test::compare(index.pool.pages, pool_after(index), {.ulps = 0}), "");
  set(index.x, 3 * 128 + 5, odd[0]);
  EXPECT_EQ(test::error_of([&] { index_insert(Context{}, index); }),
            "value 5 of key 3 is not finite: 4-bit codes hold numbers only");
}

TEST(KvInsert, PadByteOfThePackedEntryIsZero) {
  Arena arena;
  const KvPool pool = test::kv_pool(arena, {}, 1, 2, true);
  const auto args = make_args<KvInsertArgs>(arena, pool, 1, DType::kF32);
  const_cast<int32_t*>(args.rows.as<int32_t>())[0] = 1;
  kv_insert(Context{}, args);
  EXPECT_EQ(pool.pages.data[pool.layout.scale_offset(2, 1) + 7], std::byte{0});
}

// docs/spec/dsv4.md B.3: in a group with the largest value 3.0, 3.0 is exact and bf16(0.1) becomes
// 0.1015625.
TEST(KvInsert, SpecVectorOfS8) {
  Arena arena;
  const KvPool pool = test::kv_pool(arena, {}, 1, 2, true);
  const TensorView x = arena.input(DType::kF32, {1, 512}), rows = arena.input(DType::kI32, {1});
  x.as<float>()[64] = 3.f;
  x.as<float>()[65] = 0.10009765625f;
  kv_insert(Context{}, {.x = x, .rows = rows, .pool = pool});
  std::vector<float> back(512);
  load_row(pool, 0, back.data());
  EXPECT_EQ(back[64], 3.f);
  EXPECT_EQ(back[65], 0.1015625f);
  EXPECT_EQ(back[0], 0.f);
}

TEST(KvInsert, ReportsErrors) {
  Arena arena;
  const KvPool pool = test::kv_pool(arena, {}, 2, 2, true);
  const TensorView x = arena.input(DType::kF32, {2, 512}), rows = arena.input(DType::kI32, {2});
  const KvInsertArgs args{.x = x, .rows = rows, .pool = pool};
  const auto message = [&](int32_t first, int32_t second) {
    rows.as<int32_t>()[0] = first;
    rows.as<int32_t>()[1] = second;
    return test::error_of([&] { kv_insert(Context{}, args); });
  };
  EXPECT_NE(message(0, 4).find("rows[0, 1] is row 4 of a pool of 4"), std::string::npos);
  EXPECT_NE(message(3, 3).find("row 3 is written twice"), std::string::npos);
}

// The checks of ops/pools.h, which every op with a pool calls.
TEST(Pools, ReportErrors) {
  Arena arena;
  const auto message = [](const auto& pool) {
    return test::error_of([&] { check("pool", pool); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const KvPool kv = test::kv_pool(arena, {}, 3, 64, true),
               plain_kv = test::kv_pool(arena, {}, 3, 4, false);
  check("pool", kv);
  check("pool", plain_kv);
  EXPECT_EQ(kv.num_rows(), 192);
  KvPool bad = kv;
  bad.page_entries = 63;
  EXPECT_TRUE(has(message(bad), "pool: want [3, 36864] U8, got [3, 37440] U8"));
  bad.page_entries = 0;
  EXPECT_TRUE(has(message(bad), "page_entries=0"));
  bad = kv;
  bad.layout.nope = 450;
  EXPECT_TRUE(has(message(bad), "packed rows need nope % 64 == 0, got 450"));
  bad = plain_kv;
  bad.layout.rope = 63;
  EXPECT_TRUE(has(message(bad), "pool: want [3, 2044] F32|BF16, got [3, 2048] F32"));
  KvPool v32{
      .pages = arena.input(DType::kU8, {2, 3 * 656}), .layout = kV32Layout, .page_entries = 3};
  check("pool", v32);
  v32.layout.nope = 448;
  EXPECT_TRUE(has(message(v32), "packed rows need nope % 128 == 0, got 448"));

  const IndexPool index = test::index_pool(arena, 128, 3, 64, true);
  check("pool", index);
  check("pool", test::index_pool(arena, 20, 3, 5, false));
  IndexPool bad_index = index;
  bad_index.layout.width = 100;
  EXPECT_TRUE(has(message(bad_index), "packed keys need width % 32 == 0, got 100"));
  bad_index = index;
  bad_index.page_entries = 32;
  EXPECT_TRUE(has(message(bad_index), "pool: want [3, 2176] U8, got [3, 4352] U8"));
}

// Attention reads plain bf16 rows, which this op does not write.
TEST(Pools, Bf16RowsAreReadButNotWritten) {
  Arena arena;
  const TensorView latent = arena.input(DType::kBF16, {5, 700});  // rows of 576 values with gaps
  for (int64_t i = 0; i < latent.numel(); ++i)
    test::set_value(latent, i, static_cast<double>(i % 251));
  const KvPool bf16{.pages = latent.slice(1, 0, 576), .layout = kV32Layout, .page_entries = 1};
  const KvPool v32{
      .pages = arena.input(DType::kU8, {2, 3 * 656}), .layout = kV32Layout, .page_entries = 3};
  check("pool", bf16);
  std::vector<float> row(576);
  load_row(bf16, 3, row.data());
  for (size_t c = 0; c < 576; ++c) ASSERT_EQ(row[c], static_cast<float>((3 * 700 + c) % 251)) << c;

  std::vector<float> x(576, 3.f);
  pack_kv_entry(kV32Layout, x.data(), v32.pages.row<uint8_t>(1), 3, 1);
  load_row(v32, 4, row.data());
  EXPECT_EQ(row, x);

  const auto args = make_args<KvInsertArgs>(arena, bf16, 2, DType::kF32);
  EXPECT_NE(
      test::error_of([&] { kv_insert(Context{}, args); }).find("wants packed rows or plain F32"),
      std::string::npos);
}

TEST(Pools, RowIdsAreChecked) {
  Arena arena;
  const TensorView ids = arena.input(DType::kI32, {2, 3});
  for (int i = 0; i < 6; ++i) ids.as<int32_t>()[i] = i - 2;
  check_row_ids("ids", ids, 4);
  EXPECT_NE(test::error_of([&] {
              check_row_ids("ids", ids, 3);
            }).find("ids[1, 2] is row 3 of a pool of 3"),
            std::string::npos);
  check_row_ids("ids", ids.slice(1, 0, 2), 3);
}

}  // namespace
}  // namespace dsv4
