#include "dsv4/plan/synthetic.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/convert/convert_list.h"
#include "dsv4/convert/recipe_codebooks.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/e4m4.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/model/released.h"
#include "dsv4/model/tensor_list.h"
#include "dsv4/plan/weight_summary.h"

namespace dsv4 {
namespace {

constexpr float kE2M1Deviation = 2.93f;  // of uniform codes
constexpr double kBiasDeviation = 0.02, kApeDeviation = 0.1;
constexpr int kScaleBias = 127;  // of E8M0

bool ends_with(const std::string& name, const char* end) {
  const std::string tail = end;
  return name.size() >= tail.size() &&
         name.compare(name.size() - tail.size(), tail.size(), tail) == 0;
}

// Columns of the matrix that a weight tensor stores.
int64_t columns(const TensorMeta& weight) {
  if (weight.dtype == DType::kI32) return weight.dim(1) * kKbitBlock;
  const bool pairs = weight.dtype == DType::kI8 || weight.dtype == DType::kU8;
  return pairs ? 2 * weight.dim(1) : weight.dim(1);
}

float root_mean_square(std::span<const float> book) {
  float sum = 0;
  for (const float value : book) sum += value * value;
  return std::sqrt(sum / static_cast<float>(book.size()));
}

uint8_t e8m0_near(float value) {
  return static_cast<uint8_t>(kScaleBias + std::lround(std::log2(value)));
}

// The block scale with which codes of the weight have deviation 1/sqrt(k).
uint8_t scale_byte(const TensorMeta& weight, std::span<const float> book) {
  const float wanted = 1.f / std::sqrt(static_cast<float>(columns(weight)));
  if (weight.dtype == DType::kE4M3) return e8m0_near(wanted / kE4M3Deviation);
  if (weight.dtype == DType::kI32) return f32_to_e4m4(wanted / root_mean_square(book));
  return e8m0_near(wanted / kE2M1Deviation);
}

uint8_t nvfp4_scale_byte(const TensorMeta& weight) {
  return f32_to_e4m3(1.f / std::sqrt(static_cast<float>(columns(weight))) /
                     (kE2M1Deviation * kNvfp4Scale2));
}

// How often the experts of a layer are chosen: rank^-skew, ranks at random.
class Popularity {
 public:
  Popularity(int64_t num_experts, double skew, Rng& rng)
      : log_share_(static_cast<size_t>(num_experts)), through_(log_share_.size()) {
    std::vector<size_t> ranks(log_share_.size());
    for (size_t e = 0; e < ranks.size(); ++e) {
      const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(e) + 1));
      ranks[e] = ranks[at];
      ranks[at] = e;
    }
    double sum = 0;
    for (size_t e = 0; e < ranks.size(); ++e) {
      log_share_[e] = -skew * std::log(static_cast<double>(ranks[e] + 1));
      through_[e] = sum += std::exp(log_share_[e]);
    }
  }
  int64_t draw(Rng& rng) const {
    const double target = rng.uniform() * through_.back();
    const auto at = std::upper_bound(through_.begin(), through_.end(), target);
    return std::min(at - through_.begin(), std::ssize(through_) - 1);
  }
  double log_share(int64_t expert) const { return log_share_[static_cast<size_t>(expert)]; }

 private:
  std::vector<double> log_share_, through_;
};

// Distinct experts for every token.
void fill_hash_table(const TensorView& table, int64_t num_experts, double skew, Rng& rng) {
  std::optional<Popularity> popularity;
  if (skew > 0) popularity.emplace(num_experts, skew, rng);
  const int64_t k = table.dim(1);
  for (int64_t t = 0; t < table.dim(0); ++t) {
    int64_t* row = table.row<int64_t>(t);
    for (int64_t j = 0; j < k;) {
      row[j] = popularity ? popularity->draw(rng) : rng.below(num_experts);
      if (std::find(row, row + j, row[j]) == row + j) ++j;
    }
  }
}

// near_identity: large diagonal of the stream-mixing matrix after the pre and post weights.
void fill_hyper_base(const TensorView& base, int64_t m) {
  constexpr float kDiagonal = 4.f;
  if (base.numel() != m * (2 + m)) return;  // hc_head has pre weights only
  for (int64_t j = 0; j < m; ++j) base.as<float>()[2 * m + j * m + j] = kDiagonal;
}

void fill_ones(const TensorView& view) {
  for (int64_t i = 0; i < view.numel(); ++i) {
    if (view.dtype == DType::kF32) {
      view.as<float>()[i] = 1.f;
    } else {
      view.as<uint16_t>()[i] = f32_to_bf16(1.f);
    }
  }
}

void fill_normal(const TensorView& view, double deviation, Rng& rng) {
  for (int64_t i = 0; i < view.numel(); ++i)
    view.as<float>()[i] = static_cast<float>(deviation * rng.normal());
}

// The largest of noisy values is chosen with shares exp(value / s), if the noise is Gumbel's of
// scale s. Router scores sqrt(softplus(x)), x normal, come near to that with this scale.
constexpr double kScoreNoise = 0.2;

void add_popularity(const TensorView& bias, double skew, Rng& rng) {
  const Popularity popularity(bias.numel(), skew, rng);
  for (int64_t e = 0; e < bias.numel(); ++e)
    bias.as<float>()[e] += static_cast<float>(kScoreNoise * popularity.log_share(e));
}

// The codebooks that the recipe gives to weights, by the names of their tensors.
std::map<std::string, Codebook> codebooks_of(const ConvertList& list, const Recipe& recipe) {
  const UserCodebooks files = read_codebooks(recipe);
  std::map<std::string, Codebook> books;
  for (const OutputItem& item : list.items) {
    if (item.target.kind == Target::Kind::kKbit)
      books.emplace(item.name + ".codebook", codebook_of(item.target, files));
  }
  return books;
}

// What synthetic_rule() leaves to the host, except codebooks.
void fill_small(const ModelConfig& config, const std::string& name, const TensorView& view,
                double skew, Rng& rng) {
  if (ends_with(name, ".weight_scale")) return;  // large: made on the device
  if (ends_with(name, "norm.weight") || ends_with(name, ".scale_2") || ends_with(name, "_scale"))
    return fill_ones(view);
  if (ends_with(name, ".weight_scale_2")) *view.as<float>() = kNvfp4Scale2;
  if (ends_with(name, "tid2eid")) fill_hash_table(view, config.num_experts, skew, rng);
  if (ends_with(name, "_base")) fill_hyper_base(view, config.hc_mult);
  if (ends_with(name, "gate.bias")) {
    fill_normal(view, kBiasDeviation, rng);
    if (skew > 0) add_popularity(view, skew, rng);
  }
  if (ends_with(name, ".ape")) fill_normal(view, kApeDeviation, rng);
}

ModelConfig cut_config(ModelConfig config, int64_t layers) {
  if (layers == 0 || layers == config.num_layers) return config;
  if (layers < 0 || layers > config.num_layers)
    fail(ErrorCode::kBadInput, "{} layers of a model of {}", layers, config.num_layers);
  config.num_layers = layers;
  config.kinds.resize(static_cast<size_t>(layers));
  config.ratios.resize(static_cast<size_t>(layers));
  config.hash_layers.resize(static_cast<size_t>(layers));
  // A drafter sees the last layers that there are.
  std::vector<int64_t>& taps = config.dspark.taps;
  if (std::ssize(taps) > layers) taps.resize(static_cast<size_t>(layers));
  std::iota(taps.begin(), taps.end(), layers - std::ssize(taps));
  return config;
}

}  // namespace

std::optional<WeightFormat> released_format(const std::string& text) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4})
    if (text == name(format)) return format;
  return std::nullopt;
}

SyntheticRule synthetic_rule(const std::string& name, const TensorMeta& meta,
                             const TensorMeta* weight, std::span<const float> book) {
  if (ends_with(name, ".scale") && weight != nullptr)
    return {.kind = SyntheticKind::kBytes, .byte = scale_byte(*weight, book)};
  if (ends_with(name, ".weight_scale") && weight != nullptr)
    return {.kind = SyntheticKind::kBytes, .byte = nvfp4_scale_byte(*weight)};
  if (ends_with(name, "_fn"))
    return {.kind = SyntheticKind::kNormal,
            .deviation = 0.1f / std::sqrt(static_cast<float>(meta.dim(1)))};
  if (!ends_with(name, ".weight") || meta.rank < 2) return {};
  switch (meta.dtype) {
    case DType::kE4M3:
      return {.kind = SyntheticKind::kE4M3, .deviation = kE4M3Deviation};
    case DType::kI8:
    case DType::kU8:
    case DType::kI32:
      return {.kind = SyntheticKind::kBits};
    default:
      break;
  }
  // Tokens are of deviation 1, whatever their width.
  const float deviation =
      name == "embed.weight" ? 1.f : 1.f / std::sqrt(static_cast<float>(meta.dim(1)));
  return {.kind = SyntheticKind::kNormal, .deviation = deviation};
}

Model synthetic_model(const std::string& release, const SyntheticFormats& formats, int64_t layers,
                      uint64_t seed, double skew, DrafterKind wanted, ShardId shard, bool alone,
                      ExpertsPlacement placement) {
  const ModelConfig config = cut_config(released_config(release, wanted), layers);
  const ConvertList list = convert_list(
      stored_tensors(official_tensor_list(config, wanted != DrafterKind::kNone, formats.experts)),
      formats.recipe, config.o_groups);
  std::map<std::string, TensorMeta> tensors;
  for (const OutputItem& item : list.items) {
    for (const OutputTensor& tensor : item.tensors) tensors.emplace(tensor.name, tensor.meta);
  }
  const std::map<std::string, Codebook> books = codebooks_of(list, formats.recipe);
  Rng rng(seed), drafter(seed + 1);
  const auto fill = [&](const std::string& name, const TensorView& view) {
    if (const auto book = books.find(name); book != books.end()) {
      std::ranges::copy(book->second.values(), view.as<float>());
    } else {
      fill_small(config, name, view, skew, name.starts_with("mtp.") ? drafter : rng);
    }
  };
  const std::string what = "synthetic " + release;
  if (shard.whole()) return Model::blank(what, config, tensors, fill, wanted);
  const auto spec =
      std::make_shared<const ModelSpec>(config, Checkpoint::blank(what, tensors, fill), placement);
  return alone ? Model(spec, shard, wanted) : Model::of_ranks(spec, shard.world, wanted);
}

}  // namespace dsv4
