// A model with some of its experts in host memory against the same model all on the GPU: the bytes
// of every image, and the bits of logits and tokens, whatever is resident.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/device/device.h"
#include "dsv4/engine/engine.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/expert_memory.h"
#include "dsv4/engine/stored_images_test.h"
#include "dsv4/plan/synthetic.h"
#include "tests/harness/errors.h"
#include "tests/harness/gpu.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

constexpr int64_t kLayers = 4, kExperts = 256;
constexpr uint64_t kSeed = 3;

std::shared_ptr<Device> shared_gpu() {
  return {test::gpu(), [](Device*) {}};  // the harness owns it
}

class ExpertsInHostMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
    if (test::gpu()->info().major != 9) GTEST_SKIP() << "kernel images want Hopper";
  }
};

SyntheticFormats formats_of(const std::string& experts) {
  const auto released = released_format(experts);
  return released ? SyntheticFormats({}, *released) : recipe_of_flags(experts, "");
}

int64_t all_bytes(const Model& resident) {
  int64_t bytes = 0;
  for (const LayerWeights& layer : resident.weights().layers)
    bytes += kExperts * layer.moe.stack().expert_bytes(0);
  return bytes;
}

Model make(const std::string& experts, const ExpertMemory* outside) {
  Model model = synthetic_model("flash", formats_of(experts), kLayers, 1);
  make_on_device(model, shared_gpu(), kSeed, 0, {.numerics = Numerics::kOfficial}, outside);
  return model;
}

// Random experts begin on the GPU.
ExpertMemory memory_of(const Model& resident, double share, uint64_t seed) {
  Rng rng(seed);
  return {.gpu_bytes = static_cast<int64_t>(share * static_cast<double>(all_bytes(resident))),
          .limits = {.max_tokens = 512, .max_batch_tokens = 300},
          .order = test::random_order(rng, kLayers, kExperts)};
}

// Room for one place in every layer and those in transit, the least with which a store begins.
ExpertMemory least_memory(const Model& resident) {
  ExpertMemory memory = memory_of(resident, 0, 1);
  const int64_t bytes = resident.weights().layers[0].moe.stack().expert_bytes(0);
  memory.gpu_bytes = (kLayers + 2 * kLeastHalf) * align_up(bytes, kPlaceAlign);
  return memory;
}

std::vector<std::byte> on_host(const std::byte* there, int64_t bytes) {
  std::vector<std::byte> here(static_cast<size_t>(bytes));
  test::gpu()->memory().download(here.data(), there, bytes);
  return here;
}

// Homes and first places have the bytes that the GPU packs where all experts are on it.
TEST_F(ExpertsInHostMemory, StoreHasTheImagesOfTheResidentModel) {
  for (const char* experts : {"mxfp4", "k3"}) {
    SCOPED_TRACE(experts);
    const Model resident = make(experts, nullptr);
    ExpertMemory memory = memory_of(resident, 0.4, 1);
    memory.host_bytes = all_bytes(resident) * 7 / 10;  // so that some are fixed
    const Model outside = make(experts, &memory);
    const ExpertStore* const store = outside.expert_store();
    ASSERT_NE(store, nullptr);
    EXPECT_GT(store->places().fixed[0], 0);
    for (int64_t l = 0; l < kLayers; ++l) {
      const ExpertImages& images = resident.weights().layers[static_cast<size_t>(l)].moe.images;
      const int64_t up = images.gate_up.bytes(), down = images.down.bytes();
      for (int64_t e = 0; e < kExperts; ++e) {
        std::vector<std::byte> want = on_host(images.gate_up_bytes.data + e * up, up);
        const std::vector<std::byte> second = on_host(images.down_bytes.data + e * down, down);
        want.insert(want.end(), second.begin(), second.end());
        const std::byte *home = store->home(l, e), *place = store->first_place(l, e);
        ASSERT_TRUE(home != nullptr || place != nullptr) << "layer " << l << " expert " << e;
        if (home != nullptr) {
          ASSERT_EQ(std::memcmp(home, want.data(), want.size()), 0) << "home " << l << " " << e;
        }
        if (place != nullptr) {
          ASSERT_EQ(on_host(place, up + down), want) << l << " " << e;
        }
      }
      const ExpertImages& other = outside.weights().layers[static_cast<size_t>(l)].moe.images;
      ASSERT_EQ(images.exponents.empty(), other.exponents.empty());
      if (!images.exponents.empty()) {
        EXPECT_EQ(on_host(images.exponents.data, images.exponents.bytes()),
                  on_host(other.exponents.data, images.exponents.bytes()));
      }
    }
  }
}

// Chunks of 300: waves of whole layers; of 64: eager fetches; of 7 and 1: captured ones.
TEST_F(ExpertsInHostMemory, LogitsHaveTheBitsOfTheResidentModel) {
  for (const char* experts : {"mxfp4", "k3"}) {
    const Model resident = make(experts, nullptr);
    const std::vector<int32_t> ids = test::random_ids(400, resident.config().vocab_size, 5);
    for (const double share : {0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.95}) {
      const ExpertMemory memory =
          share == 0 ? least_memory(resident)
                     : memory_of(resident, share, static_cast<uint64_t>(100 * share));
      const Model outside = make(experts, &memory);
      ASSERT_NE(outside.expert_store(), nullptr);
      for (const int64_t chunk : {300, 64, 7, 1}) {
        SCOPED_TRACE(fmt::format("{} share {} chunk {}", experts, share, chunk));
        const std::span<const int32_t> text(ids.data(), chunk == 1 ? 60 : ids.size());
        const Buffer want = test::all_logits(resident, Numerics::kOfficial, text, chunk),
                     got = test::all_logits(outside, Numerics::kOfficial, text, chunk);
        EXPECT_TRUE(test::same_bits(want, got));
      }
      const ExpertStats stats = outside.expert_store()->read_stats();
      const ExpertCounts counts = stats.sum();
      fmt::print("{} share {}: {} hits, {} fetched, {} read at home\n", experts, share, counts.hits,
                 counts.moves, counts.read_at_home);
      EXPECT_GT(counts.moves, 0);
      EXPECT_EQ(counts.impossible, 0);
      EXPECT_EQ(stats.prompt_steps, 2) << "chunks of 300 and of 100 tokens";
      EXPECT_GT(stats.prompt_bytes, 0);
    }
  }
}

// After 2,000 tokens of something else, which leave other experts in the slots.
TEST_F(ExpertsInHostMemory, OtherTrafficChangesNoBits) {
  const Model resident = make("mxfp4", nullptr);
  const int64_t vocab = resident.config().vocab_size;
  const std::vector<int32_t> ids = test::random_ids(60, vocab, 5),
                             other = test::random_ids(2000, vocab, 77);
  const Buffer want = test::all_logits(resident, Numerics::kOfficial, ids, 1);
  for (const double share : {0.1, 0.6}) {
    const ExpertMemory memory = memory_of(resident, share, 21);
    const Model outside = make("mxfp4", &memory);
    const ExpertStore& store = *outside.expert_store();
    std::vector<int32_t> before(static_cast<size_t>(store.places().all())), after = before;
    store.read_places(before);
    test::all_logits(outside, Numerics::kOfficial, other, 40);
    store.read_places(after);
    EXPECT_NE(before, after) << share;
    EXPECT_TRUE(test::same_bits(want, test::all_logits(outside, Numerics::kOfficial, ids, 1)))
        << share;
  }
}

// Steps of some of five sequences, mostly a token of each, at times a piece of a prompt: the logits
// of one model and of the other, which have computed the same steps before.
TEST_F(ExpertsInHostMemory, LogitsOfBatchesHaveTheBitsOfTheResidentModel) {
  const CacheLimits limits{.max_tokens = 1024, .max_sequences = 5, .max_batch_tokens = 300};
  const Model resident = make("mxfp4", nullptr);
  for (const double share : {0.0, 0.3, 0.8}) {
    const ExpertMemory memory =
        share == 0 ? least_memory(resident) : memory_of(resident, share, 31);
    const Model outside = make("mxfp4", &memory);
    Executor here(resident, {}, limits), there(outside, {}, limits);
    std::vector<SeqId> sequences, others;
    for (int i = 0; i < limits.max_sequences; ++i)
      sequences.push_back(here.cache().open()), others.push_back(there.cache().open());
    Rng rng(41);
    for (int step = 0; step < 60; ++step) {
      const auto rows = static_cast<size_t>(1 + rng.below(limits.max_sequences));
      const int64_t piece = step % 7 == 0 ? 1 + rng.below(90) : 1;
      const std::vector<int32_t> ids =
          test::random_ids(piece + limits.max_sequences, resident.config().vocab_size,
                           100 + static_cast<uint64_t>(step));
      std::vector<Work> work, same;
      for (size_t i = 0; i < rows; ++i) {
        const std::span<const int32_t> own(ids.data() + i, i == 0 ? static_cast<size_t>(piece) : 1);
        work.push_back({sequences[i], own, Work::Logits::kLast});
        same.push_back({others[i], own, Work::Logits::kLast});
      }
      ASSERT_TRUE(test::same_bits(here.run(work), there.run(same)))
          << "share " << share << " step " << step << " rows " << rows;
    }
  }
}

struct Answer : TokenSink {
  std::vector<int32_t> tokens;
  void on_token(RequestId, const Sampled& token) override { tokens.push_back(token.id); }
  void on_finish(RequestId, Finish) override {}
};

// Several sequences at a time, prompts among decode steps, and the same engine a second time.
std::vector<std::vector<int32_t>> answers(const Model& model) {
  Engine engine(model, {.max_tokens = 512, .max_sequences = 4, .max_batch_tokens = 300});
  std::vector<std::vector<int32_t>> all;
  for (int round = 0; round < 2; ++round) {
    std::vector<Answer> sinks(6);
    for (size_t i = 0; i < sinks.size(); ++i) {
      const auto prompt =
          test::random_ids(20 + 60 * static_cast<int64_t>(i), model.config().vocab_size, 10 + i);
      engine.submit(prompt, {.sampling = {.temperature = 0}, .max_new_tokens = 24}, sinks[i]);
    }
    while (engine.step()) {
    }
    for (const Answer& sink : sinks) all.push_back(sink.tokens);
  }
  return all;
}

TEST_F(ExpertsInHostMemory, TokensAreThoseOfTheResidentModel) {
  const Model resident = make("mxfp4", nullptr);
  const std::vector<std::vector<int32_t>> want = answers(resident);
  for (const double share : {0.1, 0.6}) {
    const ExpertMemory memory = memory_of(resident, share, 9);
    const Model outside = make("mxfp4", &memory);
    EXPECT_EQ(answers(outside), want) << share;
  }
}

TEST_F(ExpertsInHostMemory, ErrorsByName) {
  const auto error = [](ErrorCode code, const ExpertMemory& memory) {
    return test::error_of(code, [&] { make("k3", &memory); });
  };
  const CacheLimits limits{.max_tokens = 64, .max_batch_tokens = 64};
  EXPECT_TRUE(test::says(error(ErrorCode::kResource, {.gpu_bytes = 1 << 20, .limits = limits}),
                         "are too few for experts: a place in each of 4 layers"));
  EXPECT_TRUE(
      test::says(error(ErrorCode::kResource, {.gpu_bytes = int64_t{1} << 45, .limits = limits}),
                 "for experts: of "));
  EXPECT_TRUE(test::says(error(ErrorCode::kResource, {.cap_bytes = 1 << 30, .limits = limits}),
                         "no room for experts"));
  EXPECT_TRUE(
      test::says(error(ErrorCode::kResource,
                       {.gpu_bytes = int64_t{1} << 30, .host_bytes = 1 << 30, .limits = limits}),
                 "of host memory hold "));
  EXPECT_TRUE(test::says(
      error(ErrorCode::kResource,
            {.gpu_bytes = int64_t{1} << 30, .host_bytes = int64_t{1} << 50, .limits = limits}),
      "are available"));
  const ExpertMemory some{.gpu_bytes = int64_t{1} << 30, .limits = limits};
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kUnsupported,
                                        [&] {
                                          Model model = synthetic_model("flash", formats_of("k3"),
                                                                        kLayers, 1);
                                          make_on_device(model, shared_gpu(), kSeed, 0,
                                                         {.numerics = Numerics::kExact}, &some);
                                        }),
                         "have kernel images here, and all must have them"));
}

}  // namespace
}  // namespace dsv4
