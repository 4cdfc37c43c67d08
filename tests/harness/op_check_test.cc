// The harness has to notice implementations that misbehave: each test here plants one fault.

#include "tests/harness/op_check.h"

#include <gtest/gtest-spi.h>

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/ops/inspect.h"
#include "dsv4/tensor/buffer.h"

#if DSV4_CUDA
#include "dsv4/device/device.h"
#include "tests/harness/kernels.h"
#endif

namespace dsv4::test {
namespace {

struct DoubleArgs {
  TensorView x;    // [t, d]; a faulty implementation writes to it
  TensorView out;  // [t, d]
};
using Run = void (*)(const Context&, const DoubleArgs&);

// out = 2 x
void correct(const Context&, const DoubleArgs& args) {
  for (int64_t t = 0; t < args.x.dim(0); ++t)
    for (int64_t i = 0; i < args.x.dim(1); ++i)
      args.out.row<float>(t)[i] = 2 * args.x.row<float>(t)[i];
}

void first_element_wrong(const Context& context, const DoubleArgs& args) {
  correct(context, args);
  args.out.as<float>()[0] += 1;
}
void last_element_not_written(const Context& context, const DoubleArgs& args) {
  float& last = args.out.row<float>(args.x.dim(0) - 1)[args.x.dim(1) - 1];
  const float before = last;
  correct(context, args);
  last = before;
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
void depends_on_neighbors(const Context& context, const DoubleArgs& args) {
  correct(context, args);
  if (args.x.dim(0) > 1) args.out.as<uint32_t>()[0] += 1;
}
// Within the tolerance of the oracle, but the first token shows that the last call had another one.
void depends_on_an_earlier_call(const Context& context, const DoubleArgs& args) {
  static float earlier = 0;
  correct(context, args);
  const float now = args.x.as<float>()[0];
  if (now != earlier) args.out.as<uint32_t>()[0] += 1;
  earlier = now;
}
void takes_its_input_for_packed(const Context&, const DoubleArgs& args) {
  const int64_t d = args.x.dim(1);
  for (int64_t t = 0; t < args.x.dim(0); ++t)
    for (int64_t i = 0; i < d; ++i) args.out.row<float>(t)[i] = 2 * args.x.as<float>()[t * d + i];
}
// What it writes too much is overwritten by the next row, unless there is a gap in between.
void writes_between_rows(const Context& context, const DoubleArgs& args) {
  const int64_t t = args.x.dim(0), d = args.x.dim(1);
  for (int64_t i = 0; i + 1 < t; ++i) args.out.row<float>(i)[d] = 5;
  correct(context, args);
}
void writes_past_its_output(const Context&, const DoubleArgs& args) {
  args.out.as<float>()[args.out.numel()] = 5;
}

constexpr Impl<DoubleArgs> kDoubleOnCpu[] = {
    {"cpu", Arch::kCpu, true, accept_all<DoubleArgs>, correct}};
constinit const Op<DoubleArgs> double_once{"double_once", kDoubleOnCpu, [](const DoubleArgs&) {},
                                           [](const DoubleArgs&) { return Cost{}; }};

// 4 x, kept in the workspace in between.
void doubles_twice(const Context& context, const DoubleArgs& args) {
  const Scratch::Scope scope(workspace(context));
  const TensorView half = workspace(context).take(DType::kF32, {args.x.dim(0), args.x.dim(1)});
  double_once(context, {.x = args.x, .out = half});
  double_once(context, {.x = half, .out = args.out});
}
// Adds a value of the workspace that was never written: zero in fresh memory.
void reads_unset_workspace(const Context& context, const DoubleArgs& args) {
  const Scratch::Scope scope(workspace(context));
  const TensorView unset = workspace(context).take(DType::kF32, {1});
  correct(context, args);
  args.out.as<float>()[0] += unset.as<float>()[0];
}

void run_checks(const Impl<DoubleArgs>& impl) {
  const Impl<DoubleArgs> table[] = {impl};
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
  test.strided = [](DoubleArgs& a, StridedCopy& copy) { copy(a.x), copy(a.out); };
  check_op(Table<DoubleArgs>(table), Context{}, arena, test);
}

Impl<DoubleArgs> on_cpu(Run run) {
  return {"faulty", Arch::kCpu, true, accept_all<DoubleArgs>, run};
}

// What check_op complained about, all in one text; "" if nothing.
std::string complaints(const Impl<DoubleArgs>& impl) {
  testing::TestPartResultArray results;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    try {
      run_checks(impl);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  std::string text;
  for (int i = 0; i < results.size(); ++i) text += results.GetTestPartResult(i).message();
  return text;
}

bool complains(Run run, const char* about) {
  return complaints(on_cpu(run)).find(about) != std::string::npos;
}

TEST(CheckOp, AcceptsACorrectImplementation) {
  EXPECT_EQ(complaints(on_cpu(correct)), "");
}

TEST(CheckOp, NoticesEveryFault) {
  EXPECT_TRUE(complains(first_element_wrong, "1 of 12 elements of [3, 4] F32 differ"));
  EXPECT_TRUE(complains(last_element_not_written, "[11] got -nan want"));
  EXPECT_TRUE(complains(writes_its_input, "an input was changed: [3, 4] F32"));
  EXPECT_TRUE(complains(writes_before_its_output, "bytes before a tensor were written"));
  EXPECT_TRUE(complains(depends_on_threads, "bits changed with the number of threads"));
  EXPECT_TRUE(complains(depends_on_neighbors, "bits of a token depend on its neighbors"));
  EXPECT_TRUE(complains(depends_on_an_earlier_call, "bits depend on an earlier call"));
  EXPECT_TRUE(complains(takes_its_input_for_packed, "8 of 12 elements of [3, 4] F32 differ"));
  EXPECT_TRUE(complains(writes_between_rows, "bytes between the rows of a strided tensor"));
}

TEST(CheckOp, GivesPartsAPoisonedWorkspace) {
  Impl<DoubleArgs> parts = on_cpu(reads_unset_workspace);
  EXPECT_NE(complaints(parts).find("no workspace"), std::string::npos);
  parts.name = "parts";
  EXPECT_NE(complaints(parts).find("bits depend on what is in the workspace"), std::string::npos);
}

TEST(CheckOpDeathTest, OneElementTooFarCrashes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run_checks(on_cpu(writes_past_its_output)), "");
}

TEST(CheckOp, NoticesThatNothingRan) {
  Impl<DoubleArgs> never = on_cpu(correct);
  never.reject = [](const Context&, const DoubleArgs&) -> const char* { return "never"; };
  EXPECT_NE(complaints(never).find("no implementation accepted the case"), std::string::npos);
}

#if DSV4_CUDA
// Implementations for a GPU, which launch kernels of double_kernels.cu.
DoubleTensors tensors_of(const DoubleArgs& args) {
  return {.x = args.x.as<float>(),
          .out = args.out.as<float>(),
          .x_stride = args.x.row_stride(),
          .out_stride = args.out.row_stride(),
          .t = args.x.dim(0),
          .d = args.x.dim(1)};
}

Impl<DoubleArgs> on_gpu(Run run) {
  return {"faulty", Arch::kCuda, true, accept_all<DoubleArgs>, run};
}

void correct_on_gpu(const Context& context, const DoubleArgs& args) {
  double_rows(*context.device, tensors_of(args), {.pdl = true, .waits = true});
}
void does_not_wait(const Context& context, const DoubleArgs& args) {
  double_rows(*context.device, tensors_of(args), {.pdl = true, .waits = false});
}
// The host reads an input when the call is enqueued: a graph keeps what it read.
void reads_on_the_host(const Context& context, const DoubleArgs& args) {
  correct_on_gpu(context, args);
  set_element(*context.device, args.out.as<float>(), 2 * args.x.as<float>()[0]);
}
void takes_more_than_a_dry_run(const Context& context, const DoubleArgs& args) {
  const Scratch::Scope scope(context.device->workspace());
  context.device->workspace().take(DType::kF32, {context.device->is_dry_run() ? 50 : 100});
  correct_on_gpu(context, args);
}
// Right only while nothing but zeros has ever been there.
void reads_workspace(const Context& context, const DoubleArgs& args) {
  const Scratch::Scope scope(context.device->workspace());
  const TensorView unset = context.device->workspace().take(DType::kF32, {1});
  correct_on_gpu(context, args);
  add_element(*context.device, args.out.as<float>(), unset.as<float>());
}

TEST(DryRun, CountsWorkspaceWithoutAGpu) {
  const auto device = Device::dry_run({.major = 9});
  const Context context{.device = device.get()};
  const TensorView x(TensorMeta::contiguous(DType::kF32, {3, 4}), nullptr);
  const DoubleArgs args{.x = x, .out = x};
  EXPECT_EQ(workspace_bytes(on_gpu(correct_on_gpu), context, args), 0);
  EXPECT_EQ(workspace_bytes(on_gpu(takes_more_than_a_dry_run), context, args), 256);
  EXPECT_EQ(workspace_bytes(on_cpu(correct), Context{}, args), 0) << "in host memory";
}

TEST(CheckOpOnGpu, NoticesEveryFault) {
  if (gpu() == nullptr) GTEST_SKIP() << "no GPU: faults of graphs, workspace and early launches";
  EXPECT_EQ(complaints(on_gpu(correct_on_gpu)), "");
  const auto complain = [](const Impl<DoubleArgs>& impl, const char* about) {
    const std::string text = complaints(impl);
    EXPECT_NE(text.find(about), std::string::npos) << "instead: " << text;
  };
  if (gpu_capability().major >= 9) complain(on_gpu(does_not_wait), "launched early");
  complain(on_gpu(reads_on_the_host), "a replayed graph with other contents gives other bits");
  complain(on_gpu(takes_more_than_a_dry_run),
           "it asked for 256 bytes of workspace: a workspace of 256 bytes is too small");
  complain(on_gpu(reads_workspace), "bits depend on what is in the workspace");
}
#endif

// On Hopper, unless another card is named.
std::string untested(const ImplTally& impl, ComputeCapability gpu = {.major = 9, .minor = 0}) {
  return untested_impls({impl}, gpu, {"slow"});
}

TEST(ImplCount, DeviceImplementationsMustRunWhereTheirArchitectureIs) {
  const ImplTally sm90{.name = "fast", .arch = Arch::kSm90, .rejected = 7, .reason = "too odd"};
  EXPECT_EQ(untested(sm90), "fast took none of 7 cases, the last: too odd\n");
  EXPECT_EQ(untested(sm90, {.major = 8, .minor = 0}), "");
  EXPECT_EQ(untested(sm90, {.major = 10, .minor = 0}), "");
  EXPECT_EQ(untested(sm90, {}), "") << "there is no GPU";
  ImplTally cuda = sm90;
  cuda.arch = Arch::kCuda;
  EXPECT_NE(untested(cuda), "");
  EXPECT_NE(untested(cuda, {.major = 8, .minor = 6}), "");
  EXPECT_EQ(untested(cuda, {}), "");
  ImplTally cpu = sm90;
  cpu.arch = Arch::kCpu;
  EXPECT_EQ(untested(cpu), "") << "another CPU implementation took the cases";
}

TEST(ImplCount, OneCaseIsEnoughAndOtherProgramsCount) {
  ImplTally impl{.name = "fast", .arch = Arch::kSm90, .rejected = 7, .reason = "too odd"};
  impl.accepted = 1;
  EXPECT_EQ(untested(impl), "");
  impl.accepted = 0, impl.name = "slow";
  EXPECT_EQ(untested(impl), "") << "declared as tested elsewhere";
}

// Two tables of a program: an implementation of one does not stand for its namesake in the other.
TEST(ImplCount, NamesakesCountApart) {
  const ImplTally ran{.name = "cuda", .arch = Arch::kCuda, .accepted = 5};
  const ImplTally idle{.name = "cuda", .arch = Arch::kCuda, .rejected = 3, .reason = "empty"};
  EXPECT_EQ(untested_impls({ran, idle}, {.major = 9, .minor = 0}, {}),
            "cuda took none of 3 cases, the last: empty\n");
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

TEST(Arena, ReversedContentsAreOnesThatWereThere) {
  Arena arena;
  const TensorView x = arena.input(DType::kF32, {2, 2}), ids = arena.input(DType::kI32, {3, 2});
  const TensorView starts = arena.inout(DType::kI32, {2}), out = arena.output(DType::kI32, {1});
  for (int32_t i = 0; i < 6; ++i) ids.as<int32_t>()[i] = i;
  for (int32_t i = 0; i < 4; ++i) x.as<float>()[i] = static_cast<float>(i);
  starts.as<int32_t>()[1] = 7;
  arena.keep_order(starts);
  arena.freeze();
  arena.reverse();
  EXPECT_EQ(x.as<float>()[0], 3) << "floats in reverse order";
  EXPECT_EQ(ids.as<int32_t>()[0], 4) << "rows of others";
  EXPECT_EQ(ids.as<int32_t>()[5], 1);
  EXPECT_EQ(starts.as<int32_t>()[1], 7);
  EXPECT_EQ(arena.frozen_contents().size(), 3u) << "an output has none";
  for (const Write& write : arena.frozen_contents()) std::copy_n(write.from, write.bytes, write.to);
  EXPECT_EQ(x.as<float>()[0], 0);
  EXPECT_EQ(ids.as<int32_t>()[0], 0);
  EXPECT_EQ(arena.role_of(out.data), Role::kOutput);
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

TEST(Dispatch, TriesTheChoicesOfTheContextFirst) {
  const Impl<DoubleArgs> impls[] = {{"any", Arch::kCpu, false, accept_all<DoubleArgs>, correct},
                                    {"late", Arch::kCpu, false, accept_all<DoubleArgs>, correct},
                                    {"never", Arch::kCpu, false, too_small, correct}};
  const Op<DoubleArgs> op{"double", impls, check_nothing, no_cost};
  const auto chosen = [&](std::vector<ImplChoice> choices, std::string_view force = {}) {
    return choose(op, Context{.force_impl = force, .choices = choices}, {}).name;
  };
  EXPECT_EQ(chosen({}), "any");
  EXPECT_EQ(chosen({{"double", "late"}}), "late");
  EXPECT_EQ(chosen({{"triple", "late"}}), "any") << "of another op";
  EXPECT_EQ(chosen({{"double", "never"}}), "any") << "it rejects the call";
  EXPECT_EQ(chosen({{"double", "never"}, {"double", "late"}}), "late");
  EXPECT_EQ(chosen({{"double", "late"}}, "any"), "any") << "a forced one is the only one";
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
  const Impl<DoubleArgs> impls[] = {{"any", Arch::kCpu, true, accept_all<DoubleArgs>, correct}};
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

TEST(Dispatch, PartsCallOtherOpsThroughTheContext) {
  Buffer x(DType::kF32, {1, 1}), out(DType::kF32, {1, 1});
  x.as<float>()[0] = 3;
  const DoubleArgs args{.x = x, .out = out};
  const Impl<DoubleArgs> impls[] = {
      {"parts", Arch::kCpu, true, accept_all<DoubleArgs>, doubles_twice}};
  const Op<DoubleArgs> op{"quadruple", impls, check_nothing, no_cost};

  struct Everything final : Observer {
    std::vector<std::string> seen;
    void observe(const OpCall& call) override {
      seen.push_back(fmt::format("{}{}", call.op(), call.impl().parts() ? ":" : ""));
      call.run();
    }
  } observer;
  Scratch scratch;
  op({.force_impl = "parts", .observer = &observer, .workspace = &scratch}, args);
  EXPECT_EQ(out.as<float>()[0], 12);
  EXPECT_EQ(observer.seen, (std::vector<std::string>{"quadruple:", "double_once", "double_once"}));
  EXPECT_EQ(scratch.peak_bytes(), 256);
  EXPECT_NE(error_of([&] { op(Context{}, args); }).find("the context has no workspace"),
            std::string::npos);
}

TEST(Dispatch, ChecksBeforeItChooses) {
  const Impl<DoubleArgs> impls[] = {{"fast", Arch::kCpu, false, too_small, correct}};
  const auto check = [](const DoubleArgs&) { fail(ErrorCode::kInvalidArgument, "x is missing"); };
  const Op<DoubleArgs> op{"double", impls, check, no_cost};
  EXPECT_EQ(error_of([&] { op(Context{}, {}); }), "x is missing");
}

TEST(Dispatch, NamesOfTheLastReleaseMeanImplementationsOfThisOne) {
  EXPECT_EQ(current_impl_name("linear", "cuda_mma_rounded"), "cuda_mma");
  EXPECT_EQ(current_impl_name("linear", "cuda"), "cuda");
  EXPECT_EQ(current_impl_name("sparse_mla", "cuda_mma_rounded"), "cuda_mma_rounded");
}

TEST(Dispatch, FindsAnImplementationByName) {
  const Impl<DoubleArgs> impls[] = {{"any", Arch::kCpu, false, accept_all<DoubleArgs>, correct}};
  const Op<DoubleArgs> op{"double", impls, check_nothing, no_cost};
  EXPECT_EQ(&impl_of(op, "any"), &impls[0]);
  EXPECT_EQ(error_of([&] { impl_of(op, "fast"); }),
            "double: this build has no implementation 'fast'");
}

// Implementations for a GPU are in the table of a CUDA build only.
TEST(Deviations, NameImplementationsThatExistAndThePageExplains) {
  const std::string page = read_text_file("docs/numerics.md");
  const std::vector<OpImpl> impls = all_op_impls();
#if DSV4_CUDA
  const bool all_impls = true;
#else
  const bool all_impls = false;
#endif
  for (const Deviation& deviation : official_deviations()) {
    const auto is_named = [&](const OpImpl& impl) {
      return impl.op == deviation.op && (impl.impl == deviation.impl || !all_impls);
    };
    EXPECT_TRUE(std::any_of(impls.begin(), impls.end(), is_named))
        << deviation.op << " has no implementation " << deviation.impl;
    EXPECT_NE(page.find(fmt::format("`{}`", deviation.impl)), std::string::npos) << deviation.impl;
  }
}

}  // namespace
}  // namespace dsv4::test
