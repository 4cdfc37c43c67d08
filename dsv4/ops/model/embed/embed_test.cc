#include "dsv4/ops/model/embed/embed.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/model/embed/embed_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

// first: of a part of a table, 7 rows of 37
void check_embed(DType table_dtype, DType out_dtype, int64_t t, int64_t m, int64_t d,
                 std::optional<int64_t> first = {}) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 100 + m * 10 + d));
  EmbedArgs args = test::random_embed(arena, rng,
                                      {.t = t,
                                       .m = m,
                                       .d = d,
                                       .vocabulary = first ? 37 : 7,
                                       .table = table_dtype,
                                       .out = out_dtype});
  if (first) args.table = args.table.slice(0, *first, *first + 7), args.first = first;
  // A copy, or one rounding to nearest.
  const double ulps = out_dtype == DType::kF32 || table_dtype == DType::kBF16 ? 0 : 0.5;
  test::OpCase<EmbedArgs> test{
      .name = fmt::format("embed {} to {} t={} m={} d={} first={}", name(table_dtype),
                          name(out_dtype), t, m, d, first.value_or(-1)),
      .args = args,
      .outputs = {{"out", args.out, embed_oracle(args), {.ulps = ulps}}},
      .one_token =
          [](const EmbedArgs& a, int64_t i) {
            EmbedArgs one = a;
            one.ids = a.ids.slice(0, i, i + 1);
            one.out = a.out.slice(0, i, i + 1);
            return one;
          },
      .num_tokens = t};
  test.strided = [](EmbedArgs& a, test::StridedCopy& copy) {
    copy(a.ids), copy(a.table), copy(a.out);
  };
  check_op(embed.impls, Context{}, arena, test);
}

TEST(Embed, AgreesWithOracle) {
  for (const DType table : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      for (const int64_t d : {1, 7, 64, 130}) {
        check_embed(table, out, 0, 4, d);
        check_embed(table, out, 1, 1, d);
        check_embed(table, out, 6, 4, d);
        for (const int64_t first : {0, 13, 30}) check_embed(table, out, 40, 2, d, first);
      }
    }
  }
}

TEST(Embed, ReportsTheIdOutOfRange) {
  Arena arena;
  const TensorView ids = arena.input(DType::kI32, {3});
  const EmbedArgs args{.ids = ids,
                       .table = arena.input(DType::kF32, {10, 4}),
                       .out = arena.output(DType::kF32, {3, 2, 4})};
  for (const int id : {10, -2}) {
    test::set_value(ids, 2, id);
    const std::string text = test::error_of([&] { embed(Context{}, args); });
    EXPECT_NE(text.find(fmt::format("ids[2] is {}, the table has 10 rows", id)), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace dsv4
