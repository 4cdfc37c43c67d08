// DSpark against its fp64 oracle, on the streams that the model's layers give.
//
// What it sees of a layer is taken inside a step. Here it comes from models that end with that
// layer: they have the same weights, and the streams that leave their last layer are those that an
// MTP block would be given.

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "dsv4/engine/executor.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/dspark_oracle.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::DsparkOracle;
using test::random_ids;
using Vector = DsparkOracle::Vector;

ModelConfig config_with(const char* changes) {
  auto json = nlohmann::json::parse(test::tiny_dspark_json());
  json.update(nlohmann::json::parse(changes));
  return parse_config(json.dump(), "test config");
}

// Every tensor has its own random numbers, so that models of fewer layers have those of more.
Model named_model(const ModelConfig& config, DrafterKind wanted) {
  std::map<std::string, TensorMeta> tensors;
  for (const NamedTensor& tensor : official_tensor_list(config, true))
    tensors.emplace(tensor.name, tensor.meta);
  return Model::blank(
      "random model", config, tensors,
      [&](const std::string& name, const TensorView& view) {
        if (view.dtype == DType::kI64) return test::fill_hash_table(view, config.num_experts);
        Rng rng(std::hash<std::string>()(name));
        test::fill_random(name, view, rng);
        // Norms are ones there, and would pass for each other.
        if (!name.ends_with("norm.weight")) return;
        for (int64_t i = 0; i < view.numel(); ++i)
          view.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(1 + 0.3 * rng.normal()));
      },
      wanted);
}

// The first layers, with an MTP block.
ModelConfig first_layers(ModelConfig config, int64_t layers) {
  config.num_layers = layers;
  config.kinds.resize(static_cast<size_t>(layers));
  config.ratios.resize(static_cast<size_t>(layers));
  config.hash_layers.resize(static_cast<size_t>(layers));
  config.mtp_layers = 1;
  config.dspark = {};
  return config;
}

constexpr Numerics kExact = Numerics::kExact;

// [t]: the streams of each token that leave the last layer of an MTP model.
std::vector<Vector> streams_of(const Model& model, std::span<const int32_t> ids) {
  Scratch scratch;
  const Context context{.numerics = kExact, .workspace = &scratch};
  const ModelConfig& c = model.config();
  const auto count = std::ssize(ids);
  ModelCache cache(c, kExact,
                   {.max_tokens = count, .max_batch_tokens = count, .drafter = DrafterKind::kMtp},
                   host_memory());
  const SeqId seq = cache.tables().open();
  EXPECT_TRUE(cache.tables().reserve(seq, count));
  ForwardBatch batch{.ids = {ids.begin(), ids.end()}};
  batch.runs.push_back(cache.run(seq, 0, count));
  StepExtents extents = step_extents(model.cache_groups(), batch);
  extents.enters = DrafterKind::kMtp;
  const Buffer streams(DType::kF32, {count + 1, c.hc_mult, c.hidden_size});
  const Scratch::Scope scope(scratch);
  Step step =
      make_step(context, c, model.cache_groups(), batch, extents, StepLists(scratch), scratch);
  model.forward(step, cache.layers(), {}, {.streams = streams, .pending = cache.streams()});
  std::vector<Vector> rows(ids.size());
  const int64_t n = c.hc_mult * c.hidden_size;
  for (int64_t t = 0; t < count; ++t)
    for (int64_t i = 0; i < n; ++i)
      rows[static_cast<size_t>(t)].push_back(oracle::value(streams, t * n + i));
  return rows;
}

// f32 against fp64: a few roundings for each of some hundred products; logits are near 1.
void expect_near(const Vector& got, const Vector& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double most = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  EXPECT_LT(most, 4e-5 * largest) << what;
  EXPECT_GT(largest, 0.1) << what;
}

class Dspark : public testing::TestWithParam<const char*> {
 protected:
  CacheLimits limits(int sequences) const {
    return {.max_tokens = 400,
            .max_sequences = sequences,
            .max_batch_tokens = 128,
            .max_drafts = config_.dspark.block_size,
            .drafter = DrafterKind::kDspark};
  }
  const ModelConfig config_ = config_with(GetParam());
  const Model model_ = named_model(config_, DrafterKind::kDspark);
};

// Blocks after texts around the window's length and where a page ends that the block still sees;
// the guesses are drawn, so each row depends on those before.
TEST_P(Dspark, AgreesWithItsOracle) {
  const int64_t w = config_.window, page = cache_groups(config_)[kWindowGroup].page_entries;
  std::vector<Model> until;  // a layer that it sees
  for (const int64_t layer : config_.dspark.taps)
    until.push_back(named_model(first_layers(config_, layer + 1), DrafterKind::kMtp));
  Rng rng(4);
  for (const int64_t length :
       {int64_t{1}, int64_t{2}, w - 1, w, w + 1, w + 2, 2 * w + 3, w + page - 1}) {
    const std::vector<int32_t> ids =
        random_ids(length + 1, config_.vocab_size, static_cast<uint64_t>(length));
    const auto text = std::span(ids).first(static_cast<size_t>(length));
    DsparkOracle oracle(model_);
    std::vector<std::vector<Vector>> seen;
    for (const Model& model : until) seen.push_back(streams_of(model, text));
    for (size_t t = 0; t < text.size(); ++t) {
      std::vector<Vector> streams;
      for (const std::vector<Vector>& layer : seen) streams.push_back(layer[t]);
      oracle.enter(streams);
    }
    Executor executor(model_, {.numerics = kExact}, limits(2));
    executor.cache().open();  // the block of the second slot is not where the first one's is
    const SeqId seq = executor.cache().open();
    for (int64_t at = 0; at < length;) {
      const int64_t count = std::min(length - at, 1 + rng.below(40));
      const Work work{seq, text.subspan(static_cast<size_t>(at), static_cast<size_t>(count))};
      executor.run({&work, 1});
      at += count;
    }
    const int32_t newest = ids.back();
    const std::vector<Vector> hidden = oracle.block(newest);
    for (const int64_t most : {config_.dspark.block_size, int64_t{1}}) {
      SampleLists lists(config_.vocab_size);
      lists.add({.temperature = 1.5f, .seed = 4}, 10);
      const Executor::DraftRow row{seq, newest, most};
      const Executor::Guesses made = executor.draft({&row, 1}, lists.rows())[0];
      ASSERT_EQ(std::ssize(made.ids), most);
      for (size_t i = 0; i < made.ids.size(); ++i) {
        const std::string what = fmt::format("after {} tokens, guess {} of {}", length, i, most);
        const int32_t before = i == 0 ? newest : made.ids[i - 1];
        expect_near(oracle::row(executor.draft_logits(), static_cast<int64_t>(i)),
                    oracle.logits(hidden[i], before), what);
        EXPECT_NEAR(made.chances[i], oracle.chance(hidden[i], before), 1e-5) << what;
        SampleLists own(config_.vocab_size);
        own.add({.temperature = 1.5f, .seed = 4}, 10 + i);
        const ConstTensorView logits =
            executor.draft_logits().slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
        EXPECT_EQ(made.ids[i], executor.runner().sample(logits, own.rows())[0].id) << what;
      }
    }
  }
}

// Runs and tokens of padding, which a device has, change no bit.
TEST_P(Dspark, PaddedBlocksGiveTheSameBits) {
  const std::vector<int32_t> ids = random_ids(70, config_.vocab_size, 3);
  Executor executor(model_, {.numerics = kExact}, limits(1));
  const SeqId seq = executor.cache().open();
  const Work work{seq, ids};
  executor.run({&work, 1});
  const std::span<const LayerCache> caches =
      executor.layers().subspan(static_cast<size_t>(config_.num_layers));
  const DsparkConfig& d = config_.dspark;
  Scratch scratch;
  const Context context{.numerics = kExact, .workspace = &scratch};
  const auto guess = [&](int64_t runs) {
    ForwardBatch batch{.ids = {7}};
    batch.ids.resize(static_cast<size_t>(d.block_size), d.noise);
    SequenceRun run{.count = d.block_size, .position = 70};
    run.pages.push_back(executor.cache().pages(seq, kWindowGroup));
    run.block_row = static_cast<int32_t>(executor.cache_plan().groups[kWindowGroup].num_pages *
                                         executor.cache_plan().groups[kWindowGroup].page_entries);
    batch.runs.push_back(run);
    const StepExtents extents = block_extents(config_, runs, d.block_size);
    const int64_t n = extents.logits_rows;
    const Buffer hidden(DType::kF32, {n, config_.hidden_size}),
        logits(DType::kF32, {n, config_.vocab_size}), before(DType::kF32, {n, d.markov_rank}),
        chances(DType::kF32, {n, 1}), drawn(DType::kI32, {runs});
    const BlockGuesses out{hidden, logits, before};
    const Scratch::Scope scope(scratch);
    Step step = make_block_step(context, config_, model_.cache_groups()[kWindowGroup], batch,
                                extents, StepLists(scratch), scratch);
    model_.draft_block(step, caches, out);
    for (int64_t i = 0; i < d.block_size; ++i) {
      for (int64_t r = 0; r < runs; ++r)  // a guess of padding may be no token
        drawn.as<int32_t>()[r] = r == 0 ? static_cast<int32_t>(3 + i) : -1;
      model_.guess_after(step, drawn, out.rows(i * runs, (i + 1) * runs));
    }
    model_.confidences(step, out, chances);
    std::vector<Vector> rows;
    for (int64_t i = 0; i < d.block_size; ++i) {
      rows.push_back(oracle::row(logits, i * runs));
      rows.back().push_back(static_cast<double>(chances.as<float>()[i * runs]));
    }
    return rows;
  };
  EXPECT_EQ(guess(1), guess(3));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Dspark,
    testing::Values("{}", R"({"hc_mult": 2, "sliding_window": 5, "num_attention_heads": 6,
                              "o_groups": 3, "head_dim": 96, "n_routed_experts": 5,
                              "num_experts_per_tok": 3, "vocab_size": 47, "dspark_block_size": 3,
                              "dspark_target_layer_ids": [1, 2]})",
                    R"({"hc_mult": 1, "sliding_window": 33, "n_shared_experts": 1,
                        "q_lora_rank": 96, "dspark_block_size": 1, "dspark_markov_rank": 32,
                        "dspark_target_layer_ids": [3], "compress_ratios": [0, 4, 128, 4, 0]})"));

}  // namespace
}  // namespace dsv4
