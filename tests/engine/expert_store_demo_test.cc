// The demo model on the CPU with experts that lie in a store: before a layer's experts are
// computed, experts_fetch brings the chosen ones to their places, and the weights are read where
// its table says. The bits are those of the model as it was loaded, whatever is resident.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/expert_store.h"
#include "dsv4/engine/stored_images_test.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

// What an expert's bytes are made of, in their order in a place.
std::vector<ConstTensorView*> parts_of(ExpertWeights& expert) {
  std::vector<ConstTensorView*> parts;
  for (WeightView* w : {&expert.w1, &expert.w3, &expert.w2})
    for (ConstTensorView* view : {&w->data, &w->scale})
      if (!view->empty()) parts.push_back(view);
  return parts;
}

int64_t bytes_of(ExpertWeights expert) {
  int64_t bytes = 0;
  for (const ConstTensorView* part : parts_of(expert)) bytes += align_up(part->bytes(), 64);
  return bytes;
}

std::vector<int64_t> layer_bytes(const Model& model) {
  std::vector<int64_t> bytes;
  for (const LayerWeights& layer : model.weights().layers)
    bytes.push_back(bytes_of(layer.moe.routed[0]));
  return bytes;
}

class FromStore final : public Observer {
 public:
  FromStore(const Model& model, const ExpertPlaces& places)
      : model_(model), store_(places, host_memory(), host_memory(), order_of(places)) {
    for (int64_t l = 0; l < places.layers(); ++l) {
      for (int64_t e = 0; e < places.experts; ++e) {
        for (std::byte* to : {store_.home(l, e), store_.first_place(l, e)}) {
          if (to == nullptr) continue;
          ExpertWeights expert = routed(l)[static_cast<size_t>(e)];
          for (const ConstTensorView* part : parts_of(expert)) {
            std::memcpy(to, part->data, static_cast<size_t>(part->bytes()));
            to += align_up(part->bytes(), 64);
          }
        }
      }
    }
  }

  void observe(const OpCall& call) override {
    const ExpertsArgs* args = call.args_of(experts);
    if (args == nullptr || args->experts.empty()) return call.run();
    const int64_t l = layer_of(args->stack.file().data());
    ExpertsFetchArgs fetch = store_.layer(l);
    fetch.experts = args->experts;
    experts_fetch({}, fetch);
    std::vector<ExpertWeights> here = routed(l);
    for (size_t e = 0; e < here.size(); ++e) {
      auto* at = reinterpret_cast<const std::byte*>(fetch.places.as<int64_t>()[e]);
      for (ConstTensorView* part : parts_of(here[e]))
        part->data = at, at += align_up(part->bytes(), 64);
    }
    Context context = call.context();
    context.observer = nullptr;
    ExpertsArgs moved = *args;
    moved.stack = here;
    experts(context, moved);
  }

  ExpertCounts counts() const { return store_.read_stats().sum(); }

 private:
  static ExpertOrder order_of(const ExpertPlaces& places) {
    Rng rng(13);
    return test::random_order(rng, places.layers(), places.experts);
  }
  const std::vector<ExpertWeights>& routed(int64_t layer) const {
    return model_.weights().layers[static_cast<size_t>(layer)].moe.routed;
  }
  int64_t layer_of(const ExpertWeights* stack) const {
    int64_t layer = 0;
    while (routed(layer).data() != stack) ++layer;
    return layer;
  }

  const Model& model_;
  ExpertStore store_;
};

// All experts; half of each layer, one of them fixed; one slot in each and two places in transit,
// so that many are read at home; and the least with which the engine's plan begins.
std::vector<ExpertPlaces> budgets(const Model& model) {
  const std::vector<int64_t> bytes = layer_bytes(model);
  const int64_t experts = model.config().num_experts;
  const int64_t huge = int64_t{1} << 40;
  const ExpertPlaces complete = plan_places(bytes, experts, huge, huge);
  EXPECT_TRUE(complete.complete());
  const auto with = [&](int64_t fixed, int64_t slots, int64_t half) {
    ExpertPlaces places = complete;
    places.fixed.assign(bytes.size(), fixed), places.slots.assign(bytes.size(), slots);
    places.half = half;
    return places;
  };
  const ExpertPlaces least = with(0, 1, std::min(experts - 1, kLeastHalf));
  return {complete, with(1, experts / 2 - 1, 2), with(0, 1, 1),
          plan_places(bytes, experts, least.gpu_bytes(), huge)};
}

TEST(ExpertStoreDemo, LogitsHaveTheBitsOfTheModel) {
  const Model model = Model::load("models/demo");
  const std::vector<int32_t> ids = test::random_ids(100, model.config().vocab_size, 5);
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const int64_t chunk : {1, 7, 64}) {
      const Buffer want = test::all_logits(model, numerics, ids, chunk);
      for (const ExpertPlaces& places : budgets(model)) {
        FromStore store(model, places);
        const Context context{.numerics = numerics, .observer = &store};
        EXPECT_TRUE(test::same_bits(want, test::all_logits(model, context, ids, chunk)))
            << "chunk " << chunk << ", " << places.resident() << " of " << places.all();
        EXPECT_EQ(store.counts().misses() == 0, places.complete());
        EXPECT_GT(store.counts().hits, 0);
      }
    }
  }
}

// Five sequences, of which some are in each step; one of them has a piece of a prompt now and then.
TEST(ExpertStoreDemo, LogitsOfBatchesHaveTheBitsOfTheModel) {
  const CacheLimits limits{.max_tokens = 256, .max_sequences = 5, .max_batch_tokens = 64};
  const Model model = Model::load("models/demo");
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const ExpertPlaces& places : budgets(model)) {
      Executor plain(model, {.numerics = numerics}, limits),
          other(model, {.numerics = numerics}, limits);
      FromStore store(model, places);
      other.observe(&store);
      std::vector<SeqId> sequences, others;
      for (int i = 0; i < limits.max_sequences; ++i)
        sequences.push_back(plain.cache().open()), others.push_back(other.cache().open());
      Rng rng(41);
      for (int step = 0; step < 20; ++step) {
        const auto rows =
            step % 2 == 0 ? size_t{5} : static_cast<size_t>(1 + rng.below(limits.max_sequences));
        const int64_t piece = step % 7 == 0 ? 1 + rng.below(50) : 1;
        const std::vector<int32_t> ids =
            test::random_ids(piece + limits.max_sequences, model.config().vocab_size,
                             100 + static_cast<uint64_t>(step));
        std::vector<Work> work, same;
        for (size_t i = 0; i < rows; ++i) {
          const std::span<const int32_t> own(ids.data() + i,
                                             i == 0 ? static_cast<size_t>(piece) : 1);
          work.push_back({sequences[i], own, Work::Logits::kLast});
          same.push_back({others[i], own, Work::Logits::kLast});
        }
        ASSERT_TRUE(test::same_bits(plain.run(work), other.run(same)))
            << places.resident() << " of " << places.all() << " step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4
