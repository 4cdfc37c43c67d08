// Steps of many tokens at V4-Flash's widths give the same bits every time, whatever the memory that
// they take was used for before; and so do experts alone, one a token, so that a difference names
// the pairs. DSV4_CHOICES=op=impl,op=impl prefers implementations, to find the op behind one.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "dsv4/base/rng.h"
#include "dsv4/device/device.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/plan/synthetic.h"
#include "tests/harness/gpu.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

constexpr int kRounds = 6;

struct Choices {
  std::vector<std::string> names;
  std::vector<ImplChoice> list;

  Choices() {
    const char* text = std::getenv("DSV4_CHOICES");
    std::stringstream choices(text == nullptr ? "" : text);
    for (std::string choice; std::getline(choices, choice, ',');) {
      names.push_back(choice.substr(0, choice.find('=')));
      names.push_back(choice.substr(choice.find('=') + 1));
    }
    for (size_t i = 0; i + 1 < names.size(); i += 2) list.push_back({names[i], names[i + 1]});
  }
};

// Other values where kernels of the next step take their temporaries.
void poison(Device& device, int value) {
  Buffer memory(DType::kU8, {64 << 20}, device.memory());
  const std::vector<std::byte> values(64 << 20, static_cast<std::byte>(value));
  device.memory().upload(memory.view().data, values.data(), memory.view().bytes());
}

// A letter a round; equal letters stand for equal bits.
template <class Run>
std::string letters(const Run& run) {
  std::vector<Buffer> different;
  std::string all;
  for (int round = 0; round < kRounds; ++round) {
    poison(*test::gpu(), round % 2 == 0 ? 0xff : 0x3c);
    Buffer out = run();
    size_t which = 0;
    while (which < different.size() && !test::same_bits(different[which].view(), out.view()))
      ++which;
    all += static_cast<char>('a' + which);
    if (which == different.size()) different.push_back(std::move(out));
  }
  return all;
}

class RepeatedSteps : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
    if (test::gpu()->info().major != 9) GTEST_SKIP() << "kernel images want Hopper";
  }
  static Model make(int64_t layers) {
    const std::string experts = GetParam();
    const auto released = released_format(experts);
    Model model = synthetic_model(
        "flash", released ? SyntheticFormats({}, *released) : recipe_of_flags(experts, ""), layers,
        1);
    make_on_device(model, {test::gpu(), [](Device*) {}}, 3, 0, {.numerics = Numerics::kOfficial});
    return model;
  }
};

TEST_P(RepeatedSteps, HaveTheSameBits) {
  const Model model = make(4);
  const Choices choices;
  for (const bool deterministic : {false, true}) {
    for (const int64_t tokens : {40, 64, 100, 300, 1000}) {
      const std::vector<int32_t> ids = test::random_ids(tokens, model.config().vocab_size, 5);
      const std::string all = letters([&] {
        return test::all_logits(model,
                                {.numerics = Numerics::kOfficial,
                                 .need_batch_invariant = deterministic,
                                 .choices = choices.list},
                                ids, tokens);
      });
      EXPECT_EQ(all, std::string(kRounds, 'a'))
          << tokens << " tokens" << (deterministic ? ", deterministic" : "");
    }
  }
}

// From 5 pairs of an expert on, the products of a weight bind and its copies do not.
TEST_P(RepeatedSteps, ExpertsHaveTheSameBits) {
  const Model model = make(1);
  const ExpertImages& images = model.weights().layers[0].moe.images;
  const int64_t d = model.config().hidden_size, e = model.config().num_experts;
  Device& device = *test::gpu();
  for (const char* impl : {"sm90_few_e4m3", "sm90_few", "sm90_grouped"}) {
    for (const int64_t t : {200, 600, 1800, 6000}) {
      Rng rng(static_cast<uint64_t>(t));
      std::vector<uint16_t> values(static_cast<size_t>(t * d));
      std::vector<int32_t> chosen(static_cast<size_t>(t));
      for (uint16_t& v : values) v = f32_to_bf16(static_cast<float>(rng.normal()));
      for (int32_t& id : chosen) id = static_cast<int32_t>(rng.below(e));
      const std::vector<float> ones(static_cast<size_t>(t), 1.f);
      const auto on_device = [&](DType dtype, std::initializer_list<int64_t> shape,
                                 const void* from) {
        Buffer to(dtype, shape, device.memory());
        device.memory().upload(to.view().data, static_cast<const std::byte*>(from),
                               to.view().bytes());
        return to;
      };
      const Buffer x = on_device(DType::kBF16, {t, d}, values.data());
      const Buffer ids = on_device(DType::kI32, {t, 1}, chosen.data());
      const Buffer weights = on_device(DType::kF32, {t, 1}, ones.data());
      const Buffer acc(DType::kF32, {t, d}, device.memory());
      const ExpertsArgs args{.x = x.view(),
                             .stack = images,
                             .experts = ids.view(),
                             .weights = weights.view(),
                             .swiglu_limit = 10.f,
                             .acc = acc.view(),
                             .add = false};
      const Context context{.force_impl = impl, .device = &device};
      if (impl_of(experts, impl).reject(context, args) != nullptr) continue;
      const std::string all = letters([&] {
        experts(context, args);
        device.wait();
        Buffer out(DType::kF32, {t, d});
        device.memory().download(out.view().data, acc.view().data, acc.view().bytes());
        return out;
      });
      EXPECT_EQ(all, std::string(kRounds, 'a')) << impl << ", " << t << " pairs";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Experts, RepeatedSteps, testing::Values("k3", "mxfp4"));

}  // namespace
}  // namespace dsv4
