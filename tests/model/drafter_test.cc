// The MTP block against its fp64 oracle, on the streams that the model really has, and the bundled
// model's against PyTorch.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/mapped_file.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/executor.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"
#include "tests/model/mtp_oracle.h"

namespace dsv4 {
namespace {

using test::MtpOracle;
using test::random_ids;

ModelConfig config_with(const char* changes) {
  auto json = nlohmann::json::parse(test::tiny_config_json());
  json.update(nlohmann::json::parse(changes));
  return parse_config(json.dump(), "test config");
}

// One sequence, the model's steps and the drafter's passes, without an engine.
class Sequence {
 public:
  // pad: steps and passes are larger than what they compute, as those that a device captures
  explicit Sequence(const Model& model, bool pad = false)
      : model_(model),
        pad_(pad),
        context_{.numerics = Numerics::kExact, .workspace = &scratch_},
        cache_(model.config(), Numerics::kExact,
               {.max_tokens = 400, .max_batch_tokens = 128, .drafter = DrafterKind::kMtp},
               host_memory()),
        seq_(cache_.tables().open()) {}

  // Computes the tokens; their streams.
  std::vector<MtpOracle::Vector> run(std::span<const int32_t> ids) {
    const auto count = std::ssize(ids);
    EXPECT_TRUE(cache_.tables().reserve(seq_, count));
    ForwardBatch batch;
    batch.runs.push_back(cache_.run(seq_, 0, count));
    batch.ids.assign(ids.begin(), ids.end());
    StepExtents extents = step_extents(model_.cache_groups(), batch);
    extents.enters = DrafterKind::kMtp;
    if (pad_) enlarge(extents);
    const ModelConfig& c = model_.config();
    const Buffer streams(DType::kF32, {extents.tokens + extents.runs, c.hc_mult, c.hidden_size});
    const Buffer logits(DType::kF32, {std::max<int64_t>(1, extents.logits_rows), c.vocab_size});
    const Scratch::Scope scope(scratch_);
    Step step = make_step(context_, c, model_.cache_groups(), batch, extents, StepLists(scratch_),
                          scratch_);
    model_.forward(step, cache_.layers(), logits,
                   {.streams = streams, .pending = cache_.streams()});
    cache_.tables().commit(seq_, count);
    std::copy_n(streams.view().row<float>((count - 1) * c.hc_mult), c.hc_mult * c.hidden_size,
                cache_.streams().as<float>());
    std::vector<MtpOracle::Vector> rows;
    for (int64_t t = 0; t < count; ++t) rows.push_back(streams_of(streams, t));
    return rows;
  }

  // Logits, and the streams of the pass, which the next one takes.
  struct Draft {
    MtpOracle::Vector logits;
    Buffer streams;
  };
  Draft draft(int32_t token, int64_t place, const ConstTensorView& before) {
    EXPECT_TRUE(cache_.tables().reserve(seq_, 1 + place));
    const ModelConfig& c = model_.config();
    ForwardBatch batch{.ids = {token}, .before = {0}};
    batch.runs.push_back(cache_.run(seq_, 0, 1));
    batch.runs[0].position += place;
    const CacheGroupSpec& window = model_.cache_groups()[kWindowGroup];
    StepExtents extents = step_extents({&window, 1}, batch);
    if (pad_) enlarge(extents);
    Draft made{.streams = Buffer(DType::kF32, {extents.tokens, c.hc_mult, c.hidden_size})};
    const Buffer logits(DType::kF32, {extents.tokens, c.vocab_size});
    const Scratch::Scope scope(scratch_);
    Step step = make_draft_step(context_, c, window, batch, extents, StepLists(scratch_), scratch_);
    // A row whose guess before was not a number has this id.
    if (pad_) const_cast<int32_t*>(step.ids.as<int32_t>())[1] = -1;
    model_.draft(step, cache_.layers().back(), before, made.streams, logits);
    made.logits = oracle::row(logits, 0);
    return made;
  }
  ConstTensorView newest() const { return cache_.streams(); }

 private:
  void enlarge(StepExtents& extents) const {
    extents.tokens += 3, extents.runs += 2;
    for (StepExtents::Group& group : extents.groups) {
      group.closed += 4;
      group.visible += 5;
      group.pages += 3;
    }
    extents.groups[kWindowGroup].closed = extents.tokens;
    extents.groups[kWindowGroup].visible = model_.config().window;
  }
  MtpOracle::Vector streams_of(const ConstTensorView& streams, int64_t t) const {
    const int64_t n = streams.dim(1) * streams.dim(2);
    MtpOracle::Vector x;
    for (int64_t i = 0; i < n; ++i) x.push_back(oracle::value(streams, t * n + i));
    return x;
  }

  const Model& model_;
  const bool pad_;
  Scratch scratch_;
  Context context_;
  ModelCache cache_;
  SeqId seq_;
};

// f32 against fp64: a few roundings for each of some hundred products; logits are near 1.
void expect_near(const MtpOracle::Vector& got, const MtpOracle::Vector& want, int64_t length) {
  ASSERT_EQ(got.size(), want.size());
  double most = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  EXPECT_LT(most, 2e-5 * largest) << "after " << length << " tokens";
  EXPECT_GT(largest, 0.1);
}

class Block : public testing::TestWithParam<const char*> {};

// Chains of three guesses after texts around the window's length, of 1, 2 and many tokens.
TEST_P(Block, AgreesWithItsOracle) {
  const ModelConfig config = config_with(GetParam());
  const Model model = test::random_model(config, 11, DrafterKind::kMtp);
  const MtpOracle oracle(model);
  const int64_t w = config.window;
  Rng rng(4);
  for (const int64_t length : {int64_t{1}, int64_t{2}, w - 1, w, w + 1, 2 * w + 3}) {
    const std::vector<int32_t> ids =
        random_ids(length + 3, config.vocab_size, static_cast<uint64_t>(length));
    Sequence sequence(model);
    std::vector<MtpOracle::Vector> streams;
    for (int64_t at = 0; at < length;) {
      const int64_t count = std::min(length - at, 1 + rng.below(40));
      for (MtpOracle::Vector& x : sequence.run(
               std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(count))))
        streams.push_back(std::move(x));
      at += count;
    }
    std::vector<MtpOracle::Vector> keys;  // [t]: of the token at t + 1
    for (size_t t = 0; t + 1 < streams.size(); ++t)
      keys.push_back(oracle.key(oracle.start(streams[t], ids[t + 1]), static_cast<int64_t>(t)));
    MtpOracle::Vector before = streams.back();
    Sequence::Draft made;
    for (int64_t place = 0; place < 3; ++place) {
      const int64_t position = length - 1 + place;
      const int32_t token = ids[static_cast<size_t>(length + place)];
      const MtpOracle::Vector x0 = oracle.start(before, token);
      keys.push_back(oracle.key(x0, position));
      if (std::ssize(keys) > w) keys.erase(keys.begin(), keys.end() - w);
      before = oracle.block(x0, position, keys);
      made = sequence.draft(token, place, place == 0 ? sequence.newest() : made.streams.view());
      expect_near(made.logits, oracle.logits(before), length);
    }
  }
}

// Tokens, runs and entries of padding change no bit of what the block guesses and enters.
TEST_P(Block, PaddedStepsGiveTheSameBits) {
  const ModelConfig config = config_with(GetParam());
  const Model model = test::random_model(config, 11, DrafterKind::kMtp);
  const int64_t length = 2 * config.window + 3;
  const std::vector<int32_t> ids = random_ids(length + 3, config.vocab_size, 3);
  Sequence exact(model), padded(model, true);
  for (int64_t at = 0; at < length;) {
    const int64_t count = std::min<int64_t>(length - at, at == 0 ? config.window : 3);
    const auto part = std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(count));
    EXPECT_EQ(exact.run(part), padded.run(part)) << at;
    at += count;
    Sequence::Draft a, b;
    for (int64_t place = 0; place < 3; ++place) {
      const int32_t token = ids[static_cast<size_t>(at + place)];
      a = exact.draft(token, place, place == 0 ? exact.newest() : a.streams.view());
      b = padded.draft(token, place, place == 0 ? padded.newest() : b.streams.view());
      EXPECT_EQ(a.logits, b.logits) << at << " tokens, pass " << place;
    }
  }
}

// The passes that an executor chains have the logits of single passes, in which each takes the
// streams and the guess of the one before; guess i is drawn with random number 10 + i.
TEST_P(Block, AChainIsWhatSinglePassesGive) {
  constexpr int64_t kMost = 6;
  const ModelConfig config = config_with(GetParam());
  const Model model = test::random_model(config, 11, DrafterKind::kMtp);
  const std::vector<int32_t> ids = random_ids(61, config.vocab_size, 8);
  const auto text = std::span(ids).first(60);
  Executor executor(
      model, {.numerics = Numerics::kExact},
      {.max_tokens = 400, .max_batch_tokens = 128, .max_drafts = 7, .drafter = DrafterKind::kMtp});
  const SeqId seq = executor.cache().open();
  const Work work{seq, text};
  executor.run({&work, 1});
  ASSERT_TRUE(executor.cache().reserve(seq, 1 + kMost));
  Sequence single(model);
  single.run(text);
  Sequence::Draft made;
  const SamplingParams params{.temperature = 1.5f, .seed = 4};
  std::vector<int32_t> guesses = {ids[60]};
  for (int64_t pass = 0; pass < kMost; ++pass) {
    made = single.draft(guesses.back(), pass, pass == 0 ? single.newest() : made.streams.view());
    SampleLists first(config.vocab_size), own(config.vocab_size);
    first.add(params, 10);
    own.add(params, 10 + static_cast<uint64_t>(pass));
    const Executor::DraftRow row{seq, ids[60], pass + 1};
    const std::vector<int32_t> chain = executor.draft({&row, 1}, first.rows())[0].ids;
    const ConstTensorView logits = executor.draft_logits();
    EXPECT_EQ(oracle::row(logits, 0), made.logits) << "pass " << pass;
    guesses.push_back(executor.runner().sample(logits, own.rows())[0].id);
    ASSERT_EQ(chain, std::vector<int32_t>(guesses.begin() + 1, guesses.end())) << "pass " << pass;
  }
}

// A copy of the head in 4 bits gives other logits, no further off than its values are from those of
// the head.
TEST_P(Block, ACopyOfTheHeadIsAsNearAsItsValues) {
  const ModelConfig config = config_with(GetParam());
  const Model model = test::random_model(config, 11, DrafterKind::kMtp);
  const std::vector<int32_t> ids = random_ids(21, config.vocab_size, 8);
  const auto logits_with = [&](bool copy) {
    CacheLimits limits{.max_tokens = 400,
                       .max_batch_tokens = 128,
                       .max_drafts = 7,
                       .drafter = DrafterKind::kMtp,
                       .draft_head = copy};
    Executor executor(model, {.numerics = Numerics::kExact}, limits);
    const SeqId seq = executor.cache().open();
    const Work work{seq, std::span(ids).first(20)};
    executor.run({&work, 1});
    EXPECT_TRUE(executor.cache().reserve(seq, 2));
    SampleLists lists(config.vocab_size);
    lists.add({.temperature = 0}, 0);
    const Executor::DraftRow row{seq, ids[20], 1};
    executor.draft({&row, 1}, lists.rows());
    return oracle::row(executor.draft_logits(), 0);
  };
  const MtpOracle::Vector own = logits_with(false), copied = logits_with(true);
  const DraftHead head(model, host_memory());
  EXPECT_EQ(DraftHead::bytes(model),
            head.view().data.bytes() + head.view().scale.bytes() + head.view().codebook.bytes());
  check("head", head.view());
  double most = 0, off = 0, largest = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    largest = std::max(largest, std::abs(own[i]));
    off = std::max(off, std::abs(own[i] - copied[i]));
    double squares = 0;
    for (int64_t c = 0; c < config.hidden_size; ++c) {
      const double d = weight_value(head.view(), static_cast<int64_t>(i), c) -
                       weight_value(model.weights().head, static_cast<int64_t>(i), c);
      squares += d * d;
    }
    most = std::max(most, std::sqrt(squares));
  }
  // h is normalized: its length is the root of its width (the norm's weights are 1).
  EXPECT_GT(off, 1e-4);
  EXPECT_LE(off, most * std::sqrt(static_cast<double>(config.hidden_size)) * 1.001);
  EXPECT_LT(off, 0.5 * largest);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Block,
    testing::Values("{}", R"({"hc_mult": 2, "sliding_window": 5, "num_attention_heads": 6,
                              "o_groups": 3, "head_dim": 96, "n_routed_experts": 5,
                              "num_experts_per_tok": 3, "vocab_size": 37})",
                    R"({"hc_mult": 1, "sliding_window": 33, "n_shared_experts": 1,
                        "q_lora_rank": 96, "routed_scaling_factor": 1.0})"));

// PyTorch on CPU and on a GPU differ by 2e-5 in the model's own logits (demo_test).
void expect_top(const nlohmann::json& golden, size_t at, const MtpOracle::Vector& logits) {
  const auto ids = golden.at("ids").at(at).get<std::vector<size_t>>();
  const auto want = golden.at("logits").at(at).get<std::vector<double>>();
  ASSERT_EQ(ids.size(), want.size());
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_NEAR(logits[ids[i]], want[i], 1e-4) << i;
  EXPECT_EQ(std::ranges::max_element(logits) - logits.begin(), static_cast<int64_t>(ids[0]));
}

// The first and the second draft after texts of 1 to 298 tokens.
TEST(DemoBlock, DraftsEqualPyTorch) {
  const auto read = [](const char* file) {
    return nlohmann::json::parse(read_text_file(test::kGoldenFolder + "demo/" + file));
  };
  const nlohmann::json golden = read("mtp.json");
  const auto ids = read("logits.json").at("ids").get<std::vector<int32_t>>();
  const Model model = Model::load("models/demo", DrafterKind::kMtp);
  const auto positions = golden.at("positions").get<std::vector<size_t>>();
  for (size_t at = 0; at < positions.size(); ++at) {
    const size_t length = positions[at] + 1;
    Sequence sequence(model);
    for (size_t done = 0; done < length;) {
      const size_t count = std::min<size_t>(length - done, 100);
      sequence.run(std::span(ids).subspan(done, count));
      done += count;
    }
    const Sequence::Draft first = sequence.draft(ids[length], 0, sequence.newest());
    const Sequence::Draft second = sequence.draft(ids[length + 1], 1, first.streams);
    SCOPED_TRACE(fmt::format("after {} tokens", length));
    expect_top(golden.at("first"), at, first.logits);
    expect_top(golden.at("second"), at, second.logits);
  }
}

}  // namespace
}  // namespace dsv4
