// Ranks on GPUs under --deterministic give the bits of one rank: logits, and the caches of every
// rank; the bundled model, and the first layers of V4-Flash with random weights; experts sliced or
// whole. Eager and captured steps, chunks and random batches. And how a rank that throws or stalls
// ends the others. Ranks are threads, or processes: this program again, once for each other rank.
//
// The ranks share GPU 0. DSV4_RANKS_GPUS=2 deals them out over two; DSV4_RANKS_STEPS=20000 runs so
// many random captured steps, or those that one rank makes in DSV4_RANKS_SECONDS=30; processes
// exchange by NCCL with DSV4_RANKS_EXCHANGE=nccl.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/device/current_device.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/rank_memories.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/plan/synthetic.h"
#include "tests/harness/errors.h"
#include "tests/harness/gpu.h"
#include "tests/harness/temp_folder.h"
#include "tests/model/golden_files.h"
#include "tests/model/random_batches.h"

namespace dsv4 {
namespace {

using test::random_ids;
using Bytes = std::vector<std::byte>;

int64_t number_of(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

// DSV4_RANKS_APART: every rank has a GPU of its own, and takes the kernels that refuse shared ones.
const bool kApart = number_of("DSV4_RANKS_APART", 0) != 0;
constexpr int kMostOnAGpu = 4;
// Before CUDA is used.
const bool kPrepared = kApart || (prepare_shared_gpus(), true);

Devices devices_for(int world) {
  const auto gpus = static_cast<int>(number_of("DSV4_RANKS_GPUS", 1));
  std::string names;
  for (int rank = 0; rank < world; ++rank)
    names += fmt::format("{}cuda:{}", rank == 0 ? "" : ",", rank % gpus);
  return open_devices(names);
}

constexpr Context kDeterministic{.numerics = Numerics::kOfficial, .need_batch_invariant = true};

constexpr auto kSliced = ExpertsPlacement::kSliced, kWhole = ExpertsPlacement::kWhole;

SyntheticFormats formats_of(const std::string& name) {
  const auto released = released_format(name);
  return released ? SyntheticFormats({}, *released) : SyntheticFormats(recipe_of_flags(name, ""));
}

// name: "demo", or the format of the experts of V4-Flash. alone: without the other ranks
Model unplaced(const std::string& name, ExpertsPlacement placement, ShardId id, bool alone) {
  if (name != "demo")
    return synthetic_model("flash", formats_of(name), 6, 1, 0, DrafterKind::kNone, id, alone,
                           placement);
  const char* const models = std::getenv("DSV4_MODELS");
  const auto spec =
      ModelSpec::load(fmt::format("{}/demo", models == nullptr ? "models" : models), placement);
  return alone ? Model(spec, id) : Model::of_ranks(spec, id.world);
}

void place(Model& model, const std::string& name, const Devices& devices, const Context& context) {
  model.share_steps_from(1);  // those of more than 16 tokens
  if (name != "demo") return make_on_devices(model, devices, 3, 0, context);
  move_to_devices(
      model, devices, [](int64_t, int64_t) {}, 0, context);
}

Model model_of(const std::string& name, int world, const Context& context,
               ExpertsPlacement placement = kSliced) {
  const Devices devices = devices_for(world);
  Model model = unplaced(name, placement, {0, world}, false);
  place(model, name, devices, context);
  return model;
}

struct Trace {
  Bytes logits;
  std::vector<Bytes> caches;  // [world]: all pools and states
};

void append(Bytes& bytes, const std::byte* data, int64_t count) {
  bytes.insert(bytes.end(), data, data + count);
}

template <class Read>
Bytes cache_bytes(std::span<const LayerCache> layers, const Read& read) {
  Bytes bytes;
  for (const LayerCache& layer : layers) {
    for (const TensorView* view : {&layer.window.pages, &layer.entries.pages, &layer.keys.pages,
                                   &layer.state.slots, &layer.index_state.slots}) {
      if (view->empty()) continue;
      Bytes here(static_cast<size_t>(view->bytes()));
      read(here.data(), *view);
      append(bytes, here.data(), view->bytes());
    }
  }
  return bytes;
}

// Where a process writes the caches of its rank.
std::string file_of_caches(const std::string& folder, uint64_t number, int rank) {
  return fmt::format("{}/{}-{}", folder, number, rank);
}
const std::string& folder_of_caches() {
  static const test::TempFolder folder;
  return folder.path();
}

// What another process needs to be a rank.
struct Follows {
  std::string name, folder, meeting;
  ShardId id;
  int whole = 0;  // experts

  static std::optional<Follows> here() {
    const char* const text = std::getenv("DSV4_TEST_FOLLOWS");
    if (text == nullptr) return std::nullopt;
    Follows self;
    std::istringstream(text) >> self.name >> self.folder >> self.meeting >> self.id.rank >>
        self.id.world >> self.whole;
    return self;
  }
  std::string variable() const {
    return fmt::format("DSV4_TEST_FOLLOWS={} {} {} {} {} {}", name, folder, meeting, id.rank,
                       id.world, whole);
  }
  std::shared_ptr<RankProcesses> meet() const {
    return std::make_shared<RankProcesses>(
        LaunchedRank{.id = id, .local_rank = id.rank, .meeting = meeting},
        RankIdentity{"test", name, "GPU"}, std::chrono::minutes(2));
  }
  // Without a device, and without the other ranks.
  Model model() const { return unplaced(name, whole != 0 ? kWhole : kSliced, id, true); }
  // The GPU of this rank alone.
  Devices device() const {
    const int64_t gpus = number_of("DSV4_RANKS_GPUS", 1);
    return open_devices(fmt::format("cuda:{}", id.rank % gpus));
  }
};

// DSV4_RANKS_EXCHANGE=nccl
ExchangeKind kind() {
  const char* const text = std::getenv("DSV4_RANKS_EXCHANGE");
  return text != nullptr && std::string(text) == "nccl" ? ExchangeKind::kNccl : ExchangeKind::kPeer;
}

// Rank 0 of a model whose other ranks are processes.
class Processes {
 public:
  Processes(const std::string& name, int world, const Context& context, ExpertsPlacement placement)
      : self_{name,
              folder_of_caches(),
              fmt::format("test-{}-{}", getpid(), ++started),
              {0, world},
              placement == kWhole ? 1 : 0} {
    set_exchange_kind(kind());
    for (int rank = 1; rank < world; ++rank) spawn(rank);
    const Devices devices = self_.device();
    model_.emplace(self_.model());
    model_->join(self_.meet());
    place_others(*model_, 0, context);
    place(*model_, name, devices, context);
  }
  ~Processes() {
    model_.reset();
    set_exchange_kind(ExchangeKind::kPeer);  // of threads
    for (const pid_t process : others_) {
      int status = -1;
      waitpid(process, &status, 0);
      EXPECT_EQ(status, 0) << "a rank that follows";
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  const Model& model() const { return *model_; }

 private:
  void spawn(int rank) {
    Follows other = self_;
    other.id.rank = rank;
    std::string variable = other.variable(), filter = "--gtest_filter=RanksThatFollow.*",
                program = "/proc/self/exe";
    std::vector<char*> variables = {variable.data()}, words = {program.data(), filter.data()};
    for (char** at = environ; *at != nullptr; ++at) variables.push_back(*at);
    variables.push_back(nullptr), words.push_back(nullptr);
    pid_t process = 0;
    ASSERT_EQ(
        posix_spawn(&process, program.c_str(), nullptr, nullptr, words.data(), variables.data()),
        0);
    others_.push_back(process);
  }

  static inline int started = 0;
  Follows self_;
  std::vector<pid_t> others_;
  std::optional<Model> model_;
};

TEST(RanksThatFollow, InAProcessOfTheirOwn) {
  const std::optional<Follows> self = Follows::here();
  if (!self) GTEST_SKIP() << "started by another test";
  set_exchange_kind(kind());
  const Devices devices = self->device();
  Model model = self->model();
  model.join(self->meet());
  FollowedWork work;
  work.place = [&](Model& rank, int64_t, const Context& context) {
    place(rank, self->name, devices, context);
  };
  work.fill = [&](const Model& rank, std::span<const LayerCache> caches, uint64_t number) {
    const Bytes bytes = cache_bytes(caches, [&](std::byte* to, const TensorView& view) {
      rank.device()->memory().download(to, view.data, view.bytes());
    });
    std::ofstream(file_of_caches(self->folder, number, self->id.rank), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  };
  follow_rank_0(model, work);
}

// The caches of other processes come from the files that they write.
std::vector<Bytes> caches_of_processes(const Model& model, Executor& executor) {
  static uint64_t number = 0;
  fill_others(model, executor.layers(), ++number);
  executor.runner().rank_stats();  // answered after that
  std::vector<Bytes> caches;
  caches.push_back(cache_bytes(executor.layers(), [&](std::byte* to, const TensorView& view) {
    model.device()->memory().download(to, view.data, view.bytes());
  }));
  for (int rank = 1; rank < model.id().world; ++rank) {
    const std::string text =
        read_text_file(file_of_caches(folder_of_caches(), number, rank), SIZE_MAX);
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    caches.emplace_back(data, data + text.size());
  }
  return caches;
}

std::vector<Bytes> caches_of(const Model& model, Executor& executor) {
  executor.wait();
  if (model.processes() != nullptr) return caches_of_processes(model, executor);
  const auto* memories = dynamic_cast<const RankMemories*>(&executor.runner().memory());
  std::vector<Bytes> caches(model.others().size() + 1);
  for (size_t rank = 0; rank < caches.size(); ++rank) {
    Device& device = rank == 0 ? *model.device() : *model.others()[rank - 1]->device();
    caches[rank] = cache_bytes(executor.layers(), [&](std::byte* to, const TensorView& view) {
      device.memory().download(
          to, memories == nullptr ? view.data : memories->at(static_cast<int>(rank), view.data),
          view.bytes());
    });
  }
  return caches;
}

// One sequence in chunks. eager: no step is captured
Trace run_chunks(const Model& model, const Context& context, int64_t tokens, int64_t chunk,
                 bool eager, Work::Logits wanted = Work::Logits::kAll) {
  const std::vector<int32_t> ids = random_ids(tokens, model.config().vocab_size, 1);
  const int64_t rows = wanted == Work::Logits::kAll ? chunk : 1;
  Executor executor(model, context,
                    {.max_tokens = tokens, .max_batch_tokens = chunk, .max_logits_rows = rows});
  RunCalls run_calls;
  if (eager) executor.observe(&run_calls);
  const SeqId seq = executor.cache().open();
  Trace trace;
  for (int64_t first = 0; first < tokens; first += chunk) {
    const auto count = static_cast<size_t>(std::min(chunk, tokens - first));
    const Work work{seq, std::span(ids).subspan(static_cast<size_t>(first), count), wanted};
    const ConstTensorView logits = executor.run({&work, 1});
    append(trace.logits, logits.data, logits.bytes());
  }
  trace.caches = caches_of(model, executor);
  return trace;
}

// Captured steps of 20 tokens whose entries are chosen, after prompts of different lengths.
Trace run_many(const Model& model, const Context& context) {
  constexpr int64_t kSequences = 20;
  const int64_t prompt = 4 * model.config().index_topk, most = prompt + kSequences;
  const std::vector<int32_t> ids = random_ids(most, model.config().vocab_size, 9);
  Executor executor(
      model, context,
      {.max_tokens = most + 8, .max_sequences = kSequences, .max_batch_tokens = most});
  std::vector<Work> work;
  for (int64_t i = 0; i < kSequences; ++i) {
    const auto length = static_cast<size_t>(prompt + i);
    work.push_back({executor.cache().open(), std::span(ids).first(length), Work::Logits::kLast});
    executor.run({&work.back(), 1});
    work.back().ids = std::span(ids).subspan(length, 1);
  }
  Trace trace;
  for (int step = 0; step < 8; ++step) {
    const ConstTensorView logits = executor.run(work);
    append(trace.logits, logits.data, logits.bytes());
  }
  trace.caches = caches_of(model, executor);
  return trace;
}

Trace run_batches(const Model& model, const Context& context, int64_t steps) {
  test::RandomBatches batches(model, context);
  Trace trace;
  for (int64_t step = 0; step < steps; ++step) {
    const ConstTensorView logits = batches.next_logits();
    append(trace.logits, logits.data, logits.bytes());
  }
  trace.caches = caches_of(model, batches.executor());
  return trace;
}

test::Digests run_hundreds(const Model& model, const Context& context, size_t most,
                           int64_t seconds) {
  test::RandomBatches batches(model, context);
  return test::run_hundreds(batches, most, std::chrono::seconds(seconds),
                            [&] { return caches_of(model, batches.executor()); });
}

void expect_same(const Trace& got, const Trace& want, const std::string& what) {
  ASSERT_EQ(got.logits.size(), want.logits.size()) << what;
  int64_t differ = 0;
  for (size_t i = 0; i < got.logits.size(); i += 4)
    differ += std::memcmp(got.logits.data() + i, want.logits.data() + i, 4) != 0;
  EXPECT_EQ(differ, 0) << what << ": of " << got.logits.size() / 4 << " logits";
  for (size_t rank = 0; rank < got.caches.size(); ++rank)
    EXPECT_TRUE(got.caches[rank] == want.caches.front()) << what << ": caches of rank " << rank;
}

class RanksOnGpu : public testing::TestWithParam<std::tuple<const char*, int, ExpertsPlacement>> {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
    if (name() != "demo" && test::gpu()->info().major != 9)
      GTEST_SKIP() << "V4-Flash on one card wants its kernels for Hopper";
    if (world() > (kApart ? 1 : kMostOnAGpu) * number_of("DSV4_RANKS_GPUS", 1))
      GTEST_SKIP() << "more ranks than GPUs hold";
  }
  std::string name() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  Model ranks(const Context& context) const {
    return model_of(name(), world(), context, std::get<2>(GetParam()));
  }
};

// The largest steps come first: workspace that grows would wait for ranks that share the GPU.
std::map<std::string, Trace> run_all(const Model& model, const Context& context, bool exact) {
  std::map<std::string, Trace> traces;
  const int64_t topk = model.config().index_topk, tokens = 4 * topk + 552;
  if (!exact)
    traces["long"] = run_chunks(model, context, tokens, tokens * 2 / 5, true, Work::Logits::kLast);
  traces["whole"] = run_chunks(model, context, 300, 300, true);
  if (exact) return traces;
  traces["in sevens"] = run_chunks(model, context, 140, 7, false);
  traces["captured"] = run_chunks(model, context, 40, 1, false);
  traces["eager"] = run_chunks(model, context, 40, 1, true);
  traces["batches"] = run_batches(model, context, 60);
  if (topk < 100) traces["many"] = run_many(model, context);
  return traces;
}

const std::map<std::string, Trace>& one_rank(const std::string& name) {
  static std::map<std::string, std::map<std::string, Trace>> all;
  if (all.count(name) == 0)
    all[name] = run_all(model_of(name, 1, kDeterministic), kDeterministic, false);
  return all[name];
}

TEST_P(RanksOnGpu, GiveTheBitsOfOneRank) {
  const auto& want = one_rank(name());
  const Model model = ranks(kDeterministic);
  for (const auto& [what, trace] : run_all(model, kDeterministic, false))
    expect_same(trace, want.at(what), what);
}

TEST_P(RanksOnGpu, ProcessesGiveTheBitsOfOneRank) {
  const auto& want = one_rank(name());
  const Processes processes(name(), world(), kDeterministic, std::get<2>(GetParam()));
  for (const auto& [what, trace] : run_all(processes.model(), kDeterministic, false))
    expect_same(trace, want.at(what), what);
}

TEST_P(RanksOnGpu, ExactNumericsToo) {
  if (name() != "demo") GTEST_SKIP() << "the bundled model alone";
  const Context exact{.numerics = Numerics::kExact, .need_batch_invariant = true};
  static const auto want = run_all(model_of("demo", 1, exact), exact, true);
  const Model model = ranks(exact);
  for (const auto& [what, trace] : run_all(model, exact, true))
    expect_same(trace, want.at(what), what);
}

// Without --deterministic ranks agree with each other.
TEST_P(RanksOnGpu, ReplicasAgreeInAnyMode) {
  const Context fast{.numerics = Numerics::kOfficial};
  const Model model = ranks(fast);
  if (world() > model.config().o_groups) GTEST_SKIP() << "a rank without heads is refused";
  for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{100}}) {
    const Trace trace = run_chunks(model, fast, chunk == 1 ? 40 : 200, chunk, false);
    for (size_t rank = 1; rank < trace.caches.size(); ++rank)
      EXPECT_TRUE(trace.caches[rank] == trace.caches[0]) << "rank " << rank << ", " << chunk;
  }
}

TEST_P(RanksOnGpu, ManyCapturedStepsKeepTheBits) {
  const auto hundreds = static_cast<size_t>(number_of("DSV4_RANKS_STEPS", 300) / 100);
  static std::map<std::string, test::Digests> all;
  if (all.count(name()) == 0)
    all[name()] = run_hundreds(model_of(name(), 1, kDeterministic), kDeterministic, hundreds,
                               number_of("DSV4_RANKS_SECONDS", 600));
  const test::Digests& want = all[name()];
  const test::Digests got =
      run_hundreds(ranks(kDeterministic), kDeterministic, want.logits.size(), INT32_MAX);
  ASSERT_GT(want.logits.size(), 0u);
  for (size_t i = 0; i < want.logits.size(); ++i) {
    ASSERT_EQ(got.logits[i], want.logits[i]) << "logits before step " << 100 * (i + 1);
    for (size_t rank = 0; rank < got.caches[i].size(); ++rank)
      ASSERT_EQ(got.caches[i][rank], want.caches[i][0]) << "rank " << rank << ", " << 100 * (i + 1);
  }
  std::printf("%zu steps\n", 100 * want.logits.size());
}

INSTANTIATE_TEST_SUITE_P(
    Models, RanksOnGpu,
    testing::Values(std::tuple("demo", 2, kSliced), std::tuple("demo", 3, kSliced),
                    std::tuple("demo", 4, kSliced), std::tuple("mxfp4", 2, kSliced),
                    std::tuple("mxfp4", 4, kSliced), std::tuple("k3", 2, kSliced),
                    std::tuple("k3", 4, kSliced), std::tuple("k3-e4m3", 2, kSliced),
                    std::tuple("demo", 2, kWhole), std::tuple("demo", 3, kWhole),
                    std::tuple("demo", 4, kWhole), std::tuple("mxfp4", 2, kWhole),
                    std::tuple("mxfp4", 4, kWhole), std::tuple("k3", 2, kWhole),
                    std::tuple("k3-e4m3", 2, kWhole)),
    [](const auto& one) {
      std::string text = fmt::format("{}_{}_{}", std::get<0>(one.param), std::get<1>(one.param),
                                     dsv4::name(std::get<2>(one.param)));
      std::replace(text.begin(), text.end(), '-', '_');
      return text;
    });

// What a fault of one rank says, of the step in which it is.
std::string fault(int world, std::chrono::milliseconds limit,
                  const std::function<void(ShardId, int64_t)>& before_step) {
  const Model model = model_of("demo", world, kDeterministic);
  const std::vector<int32_t> ids = random_ids(40, model.config().vocab_size, 1);
  std::string text;
  Executor executor(model, kDeterministic, {.max_tokens = 40, .max_batch_tokens = 8},
                    {.limit = limit, .before_step = before_step});
  const SeqId seq = executor.cache().open();
  for (size_t first = 0; first < ids.size() && text.empty(); first += 8) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      const Work work{seq, std::span(ids).subspan(first, 8), Work::Logits::kLast};
      executor.run({&work, 1});
    } catch (const Error& error) {
      text = error.what();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, limit + std::chrono::seconds(2));
    }
  }
  EXPECT_EQ(text.find('\n'), text.npos);
  return text;
}

TEST(RanksOnGpuFault, ARankThatThrowsEndsAll) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(fault(2, std::chrono::seconds(20),
                  [](ShardId id, int64_t step) {
                    if (id.rank == 1 && step == 3) fail(ErrorCode::kResource, "no memory left");
                  }),
            "rank 1: no memory left");
}

TEST(RanksOnGpuFault, ARankThatStallsEndsAll) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  const std::string text = fault(2, std::chrono::milliseconds(3000), [](ShardId id, int64_t step) {
    if (id.rank == 1 && step == 2) std::this_thread::sleep_for(std::chrono::seconds(8));
  });
  EXPECT_TRUE(text.starts_with("no answer from rank 1 for 3 s")) << text;
  std::this_thread::sleep_for(std::chrono::seconds(6));  // it comes back before the program ends
}

}  // namespace
}  // namespace dsv4
