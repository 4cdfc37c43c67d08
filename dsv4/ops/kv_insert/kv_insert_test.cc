#include "dsv4/ops/kv_insert/kv_insert.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dsv4/ops/kv_insert/kv_insert_oracle.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

constexpr auto kUntouched = std::byte{0x5c};

KvPool kv_pool(Arena& arena, const KvLayout& layout, int64_t pages, int entries, bool packed) {
  return {.pages = packed ? arena.inout(DType::kU8, {pages, layout.page_bytes(entries)})
                          : arena.inout(DType::kF32, {pages, entries * layout.width()}),
          .layout = layout,
          .page_entries = entries};
}

IndexPool index_pool(Arena& arena, int width, int64_t pages, int entries, bool packed) {
  const IndexLayoutFp4 layout{width};
  return {.pages = packed ? arena.inout(DType::kU8, {pages, layout.page_bytes(entries)})
                          : arena.inout(DType::kF32, {pages, int64_t{entries} * width}),
          .layout = layout,
          .page_entries = entries};
}

int64_t width_of(const KvPool& pool) {
  return pool.layout.width();
}
int64_t width_of(const IndexPool& pool) {
  return pool.layout.width;
}

// Byte ranges of the pool that belong to `row`, as [begin, end) from the start of the pages.
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

template <class Pool>
Ranges plain_ranges(const Pool& pool, int64_t row) {
  const int64_t bytes = width_of(pool) * 4;
  return {{row * bytes, (row + 1) * bytes}};
}
Ranges ranges_of(const KvPool& pool, int64_t row) {
  if (!pool.packed()) return plain_ranges(pool, row);
  const KvLayout& l = pool.layout;
  const int64_t entries = pool.page_entries, i = row % entries;
  const int64_t page = row / entries * l.page_bytes(entries);
  const int64_t codes = page + l.entry_offset(i), scales = page + l.scale_offset(entries, i);
  return {{codes, codes + l.entry_bytes()}, {scales, scales + l.scale_bytes()}};
}
Ranges ranges_of(const IndexPool& pool, int64_t row) {
  if (!pool.packed()) return plain_ranges(pool, row);
  const IndexLayoutFp4& l = pool.layout;
  const int64_t entries = pool.page_entries, i = row % entries;
  const int64_t page = row / entries * l.page_bytes(entries);
  const int64_t codes = page + l.code_offset(i), scales = page + l.scale_offset(entries, i);
  return {{codes, codes + l.code_bytes()}, {scales, scales + l.scale_bytes()}};
}

template <class Pool>
void expect_others_untouched(const Pool& pool, const ConstTensorView& rows) {
  std::vector<bool> named(static_cast<size_t>(pool.pages.bytes()));
  for (int64_t i = 0; i < rows.numel(); ++i) {
    if (rows.as<int32_t>()[i] < 0) continue;
    for (const auto& [begin, end] : ranges_of(pool, rows.as<int32_t>()[i])) {
      std::fill(named.begin() + begin, named.begin() + end, true);
    }
  }
  int64_t touched = 0;
  for (size_t i = 0; i < named.size(); ++i)
    touched += !named[i] && pool.pages.data[i] != kUntouched;
  EXPECT_EQ(touched, 0) << "bytes outside the named rows were written";
}

// About a third of the tokens are skipped; the others go to distinct random rows.
void fill_rows(const TensorView& rows, int64_t num_rows, Rng& rng) {
  std::set<int64_t> used;
  for (int64_t i = 0; i < rows.numel(); ++i) {
    int64_t row = rng.below(num_rows);
    if (rng.uniform() < 0.3 || !used.insert(row).second) row = -1 - rng.below(5);
    rows.as<int32_t>()[i] = static_cast<int32_t>(row);
  }
}

// Values of very different size, among them zeros, so that scales vary and the floor is met.
void fill_values(const TensorView& x, Rng& rng) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double size = i / 32 % 5 == 0 ? 0.0 : std::exp2(static_cast<double>(i / 32 % 23) - 12);
    test::set_value(x, i, size * rng.normal());
  }
}

template <class Args, class Pool>
Args make_args(Arena& arena, const Pool& pool, int64_t n, DType dtype) {
  Rng rng(static_cast<uint64_t>(n + width_of(pool)));
  const TensorView x = arena.input(dtype, {n, width_of(pool)}),
                   rows = arena.input(DType::kI32, {n});
  fill_values(x, rng);
  fill_rows(rows, pool.num_rows(), rng);
  std::fill_n(pool.pages.data, pool.pages.bytes(), kUntouched);
  return {.x = x, .rows = rows, .pool = pool};
}

// Rows that were written, read back in the order of the tokens.
template <class Args>
std::vector<float> read_back(const Args& args) {
  const int64_t width = width_of(args.pool);
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
  check_op(table, Context{}, arena, test);  // determinism and memory; the values follow
  const std::vector<float> got = read_back(args);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(static_cast<double>(got[i]), want[i]) << i;  // quantisation is exact or wrong
  }
  expect_others_untouched(args.pool, args.rows);
}

TEST(KvInsert, WritesWhatTheOracleSays) {
  for (const bool packed : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t n : {0, 1, 37}) {
        for (const int entries : {1, 2, 64}) {
          Arena arena;
          const KvLayout layout{.nope = entries == 1 ? 64 : 448, .rope = entries == 1 ? 6 : 64};
          const KvPool pool = kv_pool(arena, layout, ceil_div(90, entries), entries, packed);
          const auto args = make_args<KvInsertArgs>(arena, pool, n, dtype);
          check_insert(kv_insert_rows(), arena, args, kv_insert_oracle(args));
        }
      }
    }
  }
}

TEST(IndexInsert, WritesWhatTheOracleSays) {
  for (const bool packed : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t n : {0, 1, 37}) {
        for (const int entries : {1, 64}) {
          Arena arena;
          const int width = entries == 1 ? 32 : 128;
          const IndexPool pool = index_pool(arena, width, ceil_div(90, entries), entries, packed);
          const auto args = make_args<IndexInsertArgs>(arena, pool, n, dtype);
          check_insert(index_insert_rows(), arena, args, index_insert_oracle(args));
        }
      }
    }
  }
}

TEST(KvInsert, PadByteOfThePackedEntryIsZero) {
  Arena arena;
  const KvPool pool = kv_pool(arena, {}, 1, 2, true);
  const auto args = make_args<KvInsertArgs>(arena, pool, 1, DType::kF32);
  const_cast<int32_t*>(args.rows.as<int32_t>())[0] = 1;
  kv_insert(Context{}, args);
  EXPECT_EQ(pool.pages.data[pool.layout.scale_offset(2, 1) + 7], std::byte{0});
}

// Spec B.3: a group with largest 3.0 keeps 3.0 and turns bf16(0.1) into 0.1015625.
TEST(KvInsert, SpecVectorOfS8) {
  Arena arena;
  const KvPool pool = kv_pool(arena, {}, 1, 2, true);
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

TEST(KvInsert, SaysWhatIsWrong) {
  Arena arena;
  const KvPool pool = kv_pool(arena, {}, 2, 2, true);
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

// Pools check themselves for every op that takes one (ops/pools.h).
TEST(Pools, SayWhatIsWrong) {
  Arena arena;
  const auto message = [](const auto& pool) {
    return test::error_of([&] { check("pool", pool); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const KvPool kv = kv_pool(arena, {}, 3, 64, true), plain_kv = kv_pool(arena, {}, 3, 4, false);
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
  EXPECT_TRUE(has(message(bad), "pool: want [3, 2044] F32, got [3, 2048] F32"));

  const IndexPool index = index_pool(arena, 128, 3, 64, true);
  check("pool", index);
  check("pool", index_pool(arena, 20, 3, 5, false));
  IndexPool bad_index = index;
  bad_index.layout.width = 100;
  EXPECT_TRUE(has(message(bad_index), "packed keys need width % 32 == 0, got 100"));
  bad_index = index;
  bad_index.page_entries = 32;
  EXPECT_TRUE(has(message(bad_index), "pool: want [3, 2176] U8, got [3, 4352] U8"));
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
