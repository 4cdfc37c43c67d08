#include "dsv4/ops/model/index_select/index_select.h"

#include <memory>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/model/index_select/index_select_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::IndexShape;

IndexSelectArgs make_args(Arena& arena, const IndexShape& shape, int64_t k) {
  Rng rng(static_cast<uint64_t>(shape.t * 31 + shape.h * 7 + shape.n + k));
  return test::random_index_select(arena, rng, shape, k);
}

IndexSelectArgs one_query(const IndexSelectArgs& args, int64_t i) {
  IndexSelectArgs one = args;
  for (ConstTensorView* view : {&one.q, &one.weights, &one.sequence, &one.visible})
    *view = view->slice(0, i, i + 1);
  one.indices = args.indices.slice(0, i, i + 1);
  return one;
}

// All values are small integers, so scores are exact and the selection has one answer, ties
// included, of which there are many.
void check_select(IndexShape shape, int64_t k, Numerics numerics) {
  shape.exact_sums = true;
  Arena arena;
  const IndexSelectArgs args = make_args(arena, shape, k);
  const Context context{.numerics = numerics};
  test::OpCase<IndexSelectArgs> test{
      .name = fmt::format("index_select t={} h={} {} of {} {}", shape.t, shape.h, k, shape.n,
                          name(numerics)),
      .args = args,
      .outputs = {{"indices", args.indices, index_select_oracle(context, args), {.ulps = 0}}},
      .one_token = one_query,
      .num_tokens = shape.t};
  test.strided = [](IndexSelectArgs& a, test::StridedCopy& copy) {
    copy(a.q), copy(a.weights), copy(a.keys.pages), copy(a.pages), copy(a.indices);
  };
  check_op(index_select.impls, context, arena, test);
}

TEST(IndexSelect, AgreesWithOracle) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    check_select({.t = 0, .h = 2, .n = 5}, 3, numerics);
    check_select({.t = 1, .h = 64, .n = 700}, 512, numerics);
    check_select({.t = 5, .h = 6, .n = 90, .width = 32, .page_entries = 16}, 17, numerics);
    check_select({.t = 3, .h = 4, .n = 40}, 64, numerics);  // more than there are
    check_select({.t = 4,
                  .h = 3,
                  .n = 50,
                  .width = 20,
                  .page_entries = 7,
                  .packed = false,
                  .dtype = DType::kF32},
                 8, numerics);
  }
}

// Around the sizes and numbers of queries at which the implementation or its clusters change.
TEST(IndexSelect, ManyEntries) {
  for (const int64_t n : {511, 1024, 1025, 2300})
    check_select({.t = 3, .h = 64, .n = n}, 512, Numerics::kOfficial);
  check_select({.t = 2, .h = 9, .n = 9000}, 1024, Numerics::kOfficial);
  for (const int64_t t : {9, 15, 16})
    check_select({.t = t, .h = 3, .n = 1500}, 70, Numerics::kOfficial);
  for (const int64_t t : {32, 33, 64, 65})
    check_select({.t = t, .h = 8, .n = 300}, 100, Numerics::kOfficial);
  for (const int64_t n : {2048, 2049})
    check_select({.t = 40, .h = 8, .n = n}, 512, Numerics::kOfficial);
  for (const int64_t n : {65536, 65537})
    check_select({.t = 1, .h = 2, .n = n}, 512, Numerics::kOfficial);
}

// `parts` computes the scores of a tile of queries at a time: 64 on the host, as many as 16 M
// scores are on a device.
TEST(IndexSelect, TilesOfQueriesMeetWithoutGapOrOverlap) {
  for (const int64_t t : {63, 64, 65, 130})
    check_select({.t = t, .h = 2, .n = 150, .width = 32}, 20, Numerics::kOfficial);
  if (test::gpu() != nullptr)  // a host has the same tiles for any number of entries
    check_select({.t = 131, .h = 1, .n = 150'000, .width = 32}, 3, Numerics::kOfficial);
}

#if DSV4_CUDA
// The memory of the largest step suffices for every smaller one, whose tiles have more queries.
TEST(IndexSelect, MemoryGrowsWithQueriesAndEntries) {
  const std::unique_ptr<Device> gpu = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const Context context{.force_impl = "parts", .device = gpu.get()};
  Arena arena;
  IndexSelectArgs args = make_args(arena, {.t = 300, .h = 64, .n = 20}, 4);
  int64_t before = 0;
  for (const int64_t entries :
       {1'000, 55'000, 100'000, 167'772, 200'000, 262'144, 262'145, 300'000}) {
    args.max_visible = entries;
    const int64_t bytes = workspace_bytes(index_select, context, args);
    EXPECT_GE(bytes, before) << entries << " entries";
    EXPECT_GE(bytes, workspace_bytes(index_select, context, one_query(args, 0)));
    EXPECT_LE(bytes, std::max<int64_t>(64 << 20, 64 * 4 * entries));
    before = bytes;
  }
}
#endif

TEST(IndexSelect, ReportsErrors) {
  Arena arena;
  const IndexSelectArgs good = make_args(arena, {.t = 2, .h = 2, .n = 70}, 4);
  Scratch scratch;
  const auto message = [&](auto change) {
    IndexSelectArgs args = good;
    change(args);
    return test::error_of([&] { index_select(Context{.workspace = &scratch}, args); });
  };
  EXPECT_NE(message([](auto& a) { a.max_visible = -1; }).find("max_visible=-1"), std::string::npos);
  EXPECT_NE(message([](auto& a) { a.max_visible = 60; }).find("visible[1]=70 of 60 scores"),
            std::string::npos);
  EXPECT_EQ(message([](auto& a) { a.indices = a.indices.slice(0, 0, 1); }),
            "indices: want [t=2, k] I32, got [1, 4] I32");
}

}  // namespace
}  // namespace dsv4
