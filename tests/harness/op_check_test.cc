// The harness has to notice rows that misbehave: each test here plants one fault.

#include "tests/harness/op_check.h"
#include "dsv4/base/error.h"

#include <gtest/gtest-spi.h>

#include "dsv4/base/error.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::test {
namespace {

struct DoubleArgs {
  TensorView x;    // [t, d]; a faulty row writes to it
  TensorView out;  // [t, d]
};
using Run = void (*)(const Context&, const DoubleArgs&);

// out = 2 x
void correct(const Context&, const DoubleArgs& args) {
  for (int64_t i = 0; i < args.x.numel(); ++i) args.out.as<float>()[i] = 2 * args.x.as<float>()[i];
}

void first_element_wrong(const Context& context, const DoubleArgs& args) {
  correct(context, args);
  args.out.as<float>()[0] += 1;
}
void last_element_not_written(const Context&, const DoubleArgs& args) {
  for (int64_t i = 0; i + 1 < args.x.numel(); ++i) {
    args.out.as<float>()[i] = 2 * args.x.as<float>()[i];
  }
}
void writes_its_input(const Context& context, const DoubleArgs& args) {
  correct(context, args);
  args.x.as<float>()[1] = 5;
}
void writes_before_its_output(const Context& context, const DoubleArgs& args) {
  correct(context, args);
  args.out.as<float>()[-1] = 5;
}
// Within the tolerance of the oracle, but not the same bits.
void depends_on_threads(const Context& context, const DoubleArgs& args) {
  correct(context, args);
  if (omp_get_max_threads() == 1) args.out.as<uint32_t>()[0] += 1;
}
void depends_on_neighbours(const Context& context, const DoubleArgs& args) {
  correct(context, args);
  if (args.x.dim(0) > 1) args.out.as<uint32_t>()[0] += 1;
}
void writes_past_its_output(const Context&, const DoubleArgs& args) {
  args.out.as<float>()[args.out.numel()] = 5;
}

void run_checks(Run run, const char* (*reject)(const Context&, const DoubleArgs&)) {
  const Impl<DoubleArgs> table[] = {{"row", Arch::kCpu, true, reject, run}};
  Arena arena;
  Rng rng(1);
  const DoubleArgs args{.x = arena.input(DType::kF32, {3, 4}),
                        .out = arena.output(DType::kF32, {3, 4})};
  fill_normal(args.x, rng);
  std::vector<double> want;
  for (int64_t i = 0; i < 12; ++i) want.push_back(2 * value_at(args.x, i));
  OpCase<DoubleArgs> test{.name = "double", .args = args, .num_tokens = 3};
  test.outputs = {{"out", args.out, want, {.ulps = 2}}};
  test.one_token = [](const DoubleArgs& a, int64_t i) {
    return DoubleArgs{.x = a.x.slice(0, i, i + 1), .out = a.out.slice(0, i, i + 1)};
  };
  check_op(Table<DoubleArgs>(table), Context{}, arena, test);
}

// What check_op complained about, all in one text; "" if nothing.
std::string complaints(Run run, const char* (*reject)(const Context&,
                                                      const DoubleArgs&) = accept_all<DoubleArgs>) {
  testing::TestPartResultArray results;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    run_checks(run, reject);
  }
  std::string text;
  for (int i = 0; i < results.size(); ++i) text += results.GetTestPartResult(i).message();
  return text;
}

bool complains(Run run, const char* about) {
  return complaints(run).find(about) != std::string::npos;
}

TEST(CheckOp, AcceptsACorrectRow) {
  EXPECT_EQ(complaints(correct), "");
}

TEST(CheckOp, NoticesEveryFault) {
  EXPECT_TRUE(complains(first_element_wrong, "1 of 12 elements of [3, 4] F32 differ"));
  EXPECT_TRUE(complains(last_element_not_written, "[11] got -nan want"));
  EXPECT_TRUE(complains(writes_its_input, "an input was changed: [3, 4] F32"));
  EXPECT_TRUE(complains(writes_before_its_output, "bytes before a tensor were written"));
  EXPECT_TRUE(complains(depends_on_threads, "bits changed with the number of threads"));
  EXPECT_TRUE(complains(depends_on_neighbours, "bits of a token depend on its neighbours"));
}

TEST(CheckOpDeathTest, OneElementTooFarCrashes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_checks(writes_past_its_output, accept_all<DoubleArgs>), "");
}

TEST(CheckOp, NoticesThatNothingRan) {
  const auto reject = [](const Context&, const DoubleArgs&) -> const char* { return "never"; };
  EXPECT_NE(complaints(correct, reject).find("no row accepted the case"), std::string::npos);
}

// On Hopper, unless another card is named.
std::string untested(const RowTally& row, ComputeCapability gpu = {.major = 9, .minor = 0}) {
  return untested_rows({row}, gpu, {"slow"});
}

TEST(RowCount, DeviceRowsMustRunWhereTheirArchitectureIs) {
  const RowTally sm90{.name = "fast", .arch = Arch::kSm90, .rejected = 7, .reason = "too odd"};
  EXPECT_EQ(untested(sm90), "row fast took none of 7 cases, the last: too odd\n");
  EXPECT_EQ(untested(sm90, {.major = 8, .minor = 0}), "");
  EXPECT_EQ(untested(sm90, {.major = 10, .minor = 0}), "");
  EXPECT_EQ(untested(sm90, {}), "") << "there is no GPU";
  RowTally cuda = sm90;
  cuda.arch = Arch::kCuda;
  EXPECT_NE(untested(cuda), "");
  EXPECT_NE(untested(cuda, {.major = 8, .minor = 6}), "");
  EXPECT_EQ(untested(cuda, {}), "");
  RowTally cpu = sm90;
  cpu.arch = Arch::kCpu;
  EXPECT_EQ(untested(cpu), "") << "another CPU row took the cases";
}

TEST(RowCount, OneCaseIsEnoughAndOtherProgramsCount) {
  RowTally row{.name = "fast", .arch = Arch::kSm90, .rejected = 7, .reason = "too odd"};
  row.accepted = 1;
  EXPECT_EQ(untested(row), "");
  row.accepted = 0, row.name = "slow";
  EXPECT_EQ(untested(row), "") << "declared as tested elsewhere";
}

// Two tables of a program: a row of one does not stand for its namesake in the other.
TEST(RowCount, NamesakesCountApart) {
  const RowTally ran{.name = "cuda", .arch = Arch::kCuda, .accepted = 5};
  const RowTally idle{.name = "cuda", .arch = Arch::kCuda, .rejected = 3, .reason = "empty"};
  EXPECT_EQ(untested_rows({ran, idle}, {.major = 9, .minor = 0}, {}),
            "row cuda took none of 3 cases, the last: empty\n");
}

TEST(Arena, InOutTensorsStartEachRunAlike) {
  Arena arena;
  const TensorView x = arena.inout(DType::kI32, {3}), out = arena.output(DType::kF32, {2});
  x.as<int32_t>()[1] = 7;
  arena.freeze();
  x.as<int32_t>()[1] = 8;
  arena.prepare();
  EXPECT_EQ(x.as<int32_t>()[1], 7);
  EXPECT_TRUE(std::isnan(out.as<float>()[1])) << "outputs are poisoned";
  EXPECT_EQ(arena.written().size(), 20u);
}

void check_nothing(const DoubleArgs&) {
}
Cost no_cost(const DoubleArgs&) {
  return {};
}

const char* too_small(const Context&, const DoubleArgs&) {
  return "too small";
}

TEST(Dispatch, TakesTheFirstImplementationThatFits) {
  const Impl<DoubleArgs> impls[] = {{"fast", Arch::kCpu, false, too_small, correct},
                                    {"any", Arch::kCpu, false, accept_all<DoubleArgs>, correct},
                                    {"slow", Arch::kCpu, true, accept_all<DoubleArgs>, correct}};
  const Op<DoubleArgs> op{"double", impls, check_nothing, no_cost};
  EXPECT_EQ(choose(op, Context{}, {}).name, "any");
  EXPECT_EQ(choose(op, Context{.force_impl = "slow"}, {}).name, "slow");
  EXPECT_EQ(choose(op, Context{.need_batch_invariant = true}, {}).name, "slow");
  EXPECT_EQ(error_of([&] { choose(op, Context{.force_impl = "fast"}, {}); }),
            "double: no implementation fits (fast: too small; any: not the forced implementation; "
            "slow: not the forced implementation)");
}

// Keeps what it saw and runs every second call.
struct EverySecond final : Observer {
  std::vector<std::string> seen;
  const DoubleArgs* args = nullptr;
  const Op<DoubleArgs>* op = nullptr;
  void observe(const OpCall& call) override {
    seen.push_back(fmt::format("{}/{} {} bytes, workspace {}", call.op(), call.impl().name,
                               call.cost().bytes, call.workspace()));
    args = call.args_of(*op);
    if (seen.size() % 2 == 0) call.run();
  }
};

TEST(Dispatch, AnObserverDecidesWhetherACallRuns) {
  Buffer x(DType::kF32, {1, 1}), out(DType::kF32, {1, 1});
  x.as<float>()[0] = 3;
  out.as<float>()[0] = -1;
  const DoubleArgs args{.x = x, .out = out};
  const Impl<DoubleArgs> impls[] = {
      {"any", Arch::kCpu, true, accept_all<DoubleArgs>, correct}};
  const auto cost = [](const DoubleArgs& a) { return Cost{.bytes = 8. * a.x.numel()}; };
  const Op<DoubleArgs> op{"double", impls, check_nothing, cost}, other = op;

  EverySecond observer;
  observer.op = &op;
  const Context context{.observer = &observer};
  op(context, args);
  EXPECT_EQ(out.as<float>()[0], -1) << "the observer did not run the first call";
  EXPECT_EQ(observer.args->out.data, args.out.data);
  op(context, args);
  EXPECT_EQ(out.as<float>()[0], 6);
  EXPECT_EQ(observer.seen, std::vector<std::string>(2, "double/any 8 bytes, workspace 0"));
  other(context, args);
  EXPECT_EQ(observer.args, nullptr) << "a call of another op";
}

TEST(Dispatch, ChecksBeforeItChooses) {
  const Impl<DoubleArgs> impls[] = {{"fast", Arch::kCpu, false, too_small, correct}};
  const auto check = [](const DoubleArgs&) { fail(ErrorCode::kInvalidArgument, "x is missing"); };
  const Op<DoubleArgs> op{"double", impls, check, no_cost};
  EXPECT_EQ(error_of([&] { op(Context{}, {}); }), "x is missing");
}

}  // namespace
}  // namespace dsv4::test
