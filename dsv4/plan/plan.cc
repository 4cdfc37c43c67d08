#include "dsv4/plan/plan.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/device_weights.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/speculation.h"
#include "dsv4/model/schedule.h"
#include "dsv4/model/weight_table.h"
#if DSV4_CUDA
#include "dsv4/plan/imagined_gpu.h"
#endif

namespace dsv4 {
namespace {

constexpr int64_t kMaxSequences = int64_t{1} << 20;

DrafterKind drafter_of(const ModelConfig& config, const PlanRequest& request) {
  return request.drafter ? drafter_kind(config) : DrafterKind::kNone;
}

CacheLimits limits_of(const ModelConfig& config, const PlanRequest& request, int64_t context,
                      int64_t sequences) {
  const int64_t drafts = request.drafter ? kMaxDrafts : 0;
  const int64_t batch = std::max(request.batch_tokens, sequences);
  return {.max_tokens = context,
          .max_sequences = static_cast<int>(sequences),
          .max_batch_tokens = batch,
          .max_logits_rows = std::min(sequences * (1 + drafts), batch),
          .max_drafts = drafts,
          .drafter = drafter_of(config, request)};
}

// The largest n in [0, most] that fits; what does not fit is followed by nothing that does.
template <class Fits>
int64_t largest(int64_t most, const Fits& fits) {
  int64_t low = 0, high = most;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Room and need of a number of sequences with a context.
struct Balance {
  int64_t room = 0, need = 0;
  bool fits() const { return need <= room; }
};

// The GPU whose kernels a machine's workspace is planned for.
Context context_of(const Machine& machine, Numerics numerics) {
  Context context{.numerics = numerics};
#if DSV4_CUDA
  static const std::unique_ptr<Device> hopper = imagined_gpu("h200");
  if (!machine.host) context.device = hopper.get();
#else
  (void)machine;
#endif
  return context;
}

Balance balance(const MemoryPlan& plan, const Machine& machine, int64_t context,
                int64_t sequences) {
  const PlanRequest& request = plan.request;
  CacheLimits limits = limits_of(plan.config, request, context, sequences);
  limits.draft_head = !machine.host && plan.draft_head_bytes > 0;
  const int64_t work = plan_workspace(*plan.shapes, context_of(machine, request.numerics), limits,
                                      machine.host ? request.threads : 0)
                           .total();
  const int64_t cache = plan_cache(plan.config, request.numerics, limits).plan.bytes();
  int64_t kept = machine.reserve_bytes, need = plan.rank_weights(machine.devices) + cache;
  if (machine.host) {
    need += work;
  } else {
    kept = std::max(kept, work);
  }
  return {.room = machine.device_bytes - kept, .need = need};
}

// Units by which ranks share a weight (weight_table.h), by official name.
class CutUnits final : public WeightVisitor {
 public:
  CutUnits(const ModelConfig& config, ExpertsPlacement placement)
      : experts_(config.num_experts), whole_(placement == ExpertsPlacement::kWhole) {
    ModelWeights weights;
    visit_weights(config, weights, *this);
    if (drafter_kind(config) == DrafterKind::kNone) return;
    DrafterWeights drafter{.kind = drafter_kind(config)};
    visit_drafter(config, drafter, *this);
  }
  void matrix(WeightView&, const WeightSpec& spec, int64_t n, int64_t) override { add(spec, n); }
  void grouped(WeightView&, const WeightSpec& spec, int64_t n, int64_t, int64_t) override {
    add(spec, n);
  }
  void floats(ConstTensorView&, const WeightSpec& spec,
              std::initializer_list<int64_t> shape) override {
    add(spec, *shape.begin());
  }
  void f32(ConstTensorView&, const WeightSpec& spec,
           std::initializer_list<int64_t> shape) override {
    add(spec, *shape.begin());
  }
  void expert_ids(ConstTensorView&, const WeightSpec&, std::initializer_list<int64_t>) override {}

  // Bytes of the weights that are cut, by their number of units.
  std::map<int64_t, int64_t> bytes_of(const ConvertList& weights) const {
    std::map<int64_t, int64_t> bytes;
    for (const OutputItem& item : weights.items) {
      if (const auto at = units_.find(item.name); at != units_.end())
        bytes[at->second] += item.bytes();
    }
    return bytes;
  }

 private:
  void add(const WeightSpec& spec, int64_t rows) {
    if (whole_ && spec.cut.if_whole == Cut::IfWhole::kEverywhere) return;
    if (whole_ && spec.cut.if_whole == Cut::IfWhole::kOfOwner) {
      units_[spec.name] = experts_;  // ranks share all of them by number
    } else if (spec.cut.unit > 0 && rows >= spec.cut.unit) {
      units_[spec.name] = rows / spec.cut.unit;  // a weight with less than a unit is not cut
    }
  }

  const int64_t experts_;
  const bool whole_;
  std::map<std::string, int64_t> units_;
};

bool has_images(const OutputItem& item) {
  switch (item.target.kind) {
    case Target::Kind::kMxfp4:
    case Target::Kind::kNvfp4:
    case Target::Kind::kKbit:
      return true;
    case Target::Kind::kKeep:
      return item.source == WeightFormat::kMxfp4 || item.source == WeightFormat::kNvfp4 ||
             item.source == WeightFormat::kKbit;
    default:
      return false;
  }
}

// All experts of a layer have the same formats.
std::vector<int64_t> expert_bytes(const ModelConfig& config, const ConvertList& weights) {
  const auto layers = static_cast<size_t>(config.num_layers);
  std::vector<int64_t> sums(layers);
  std::vector<bool> others(layers);
  for (const OutputItem& item : weights.items) {
    if (item.id.part != WeightPart::kExperts || item.id.drafter || item.id.layer < 0) continue;
    const auto layer = static_cast<size_t>(item.id.layer);
    if (layer >= layers) continue;
    if (!has_images(item)) others[layer] = true;
    for (const OutputTensor& tensor : item.tensors)
      if (tensor.meta.rank > 1) sums[layer] += tensor.meta.bytes();
  }
  for (size_t l = 0; l < layers; ++l) sums[l] = others[l] ? 0 : sums[l] / config.num_experts;
  return sums;
}

using Tensors = std::map<std::string, TensorMeta>;

// Tensors of each layer, by the part of the name after "layers.N.", and those of no layer.
struct TensorsByLayer {
  std::map<int64_t, Tensors> layers;
  Tensors others;
};

TensorsByLayer by_layer(const ConvertList& weights) {
  constexpr std::string_view kPrefix = "layers.";
  TensorsByLayer result;
  for (const OutputItem& item : weights.items) {
    for (const OutputTensor& tensor : item.tensors) {
      const std::string& name = tensor.name;
      int64_t layer = 0;
      const char* const end = name.data() + name.size();
      const bool in_layer = name.rfind(kPrefix, 0) == 0;
      const char* at =
          in_layer ? std::from_chars(name.data() + kPrefix.size(), end, layer).ptr : end;
      if (at != end && *at == '.') {
        result.layers[layer].emplace(std::string(at + 1, end), tensor.meta);
      } else {
        result.others.emplace(name, tensor.meta);
      }
    }
  }
  return result;
}

std::string signature(const ModelConfig& config, size_t layer, const Tensors& tensors) {
  std::string text = fmt::format("{} {} {}", name(config.kinds[layer]), config.ratios[layer],
                                 static_cast<bool>(config.hash_layers[layer]));
  for (const auto& [tensor, meta] : tensors) text += fmt::format(" {} {}", tensor, to_string(meta));
  return text;
}

// The model without memory, with one layer of every kind: layers follow one another in the same
// scratch, so equal ones take no more than one does.
std::shared_ptr<const Model> shapes_of(const ModelConfig& config, const ConvertList& weights,
                                       DrafterKind drafter) {
  TensorsByLayer all = by_layer(weights);
  Tensors tensors = std::move(all.others);
  ModelConfig kept = config;
  kept.kinds.clear(), kept.ratios.clear(), kept.hash_layers.clear();
  std::set<std::string> seen;
  for (size_t l = 0; l < config.kinds.size(); ++l) {
    const Tensors& layer = all.layers[static_cast<int64_t>(l)];
    if (!seen.insert(signature(config, l, layer)).second) continue;
    for (const auto& [tensor, meta] : layer)
      tensors.emplace(fmt::format("layers.{}.{}", kept.kinds.size(), tensor), meta);
    kept.kinds.push_back(config.kinds[l]);
    kept.ratios.push_back(config.ratios[l]);
    kept.hash_layers.push_back(config.hash_layers[l]);
  }
  kept.num_layers = static_cast<int64_t>(kept.kinds.size());
  Model model = Model::shapes("the list of tensors", kept, tensors, drafter);
  // As on a device: kernels want the experts of a layer at equal distances.
  redirect_tensors(model, place_tensors(model), unmapped_address(0));
  return std::make_shared<const Model>(std::move(model));
}

}  // namespace

// The last rank has the largest share of each weight: ceil(units / devices) units.
int64_t MemoryPlan::rank_weights(int devices) const {
  int64_t bytes = weights.total.bytes;
  for (const auto& [units, cut] : cut_bytes)
    bytes -= cut - cut * ceil_div(units, int64_t{devices}) / units;
  return bytes;
}

CacheLimits cache_limits(const ModelConfig& config, const PlanRequest& request) {
  return limits_of(config, request, request.context, request.sequences);
}

MemoryPlan plan_memory(const ModelConfig& config, const ConvertList& weights,
                       const PlanRequest& request) {
  DSV4_CHECK(request.context >= 1 && request.sequences >= 1 && request.batch_tokens >= 1,
             "context={} sequences={} batch_tokens={}", request.context, request.sequences,
             request.batch_tokens);
  if (request.context > config.max_positions)
    fail(ErrorCode::kBadInput, "a context of {} tokens exceeds the model's {} positions",
         request.context, config.max_positions);
  if (request.numerics == Numerics::kOfficial) check_official_numerics(config);
  const CacheLimits limits = cache_limits(config, request);
  const DrafterKind drafter = drafter_of(config, request);
  const std::shared_ptr<const Model> shapes = shapes_of(config, weights, drafter);
  return {
      .config = config,
      .shapes = shapes,
      .request = request,
      .weights = summarize(weights),
      .expert_bytes = expert_bytes(config, weights),
      .cut_bytes = CutUnits(config, request.placement).bytes_of(weights),
      .kv_rate = kv_rate(config, request.numerics),
      .sequence = sequence_bytes(config, request.numerics, drafter),
      .cache_bytes = plan_cache(config, request.numerics, limits).plan.bytes(),
      .draft_head_bytes = drafter == DrafterKind::kMtp ? DraftHead::bytes(*shapes) : 0,
      .workspace = plan_workspace(*shapes, {.numerics = request.numerics}, limits, request.threads),
      .checkpoint_bytes = checkpoint_bytes(config, request.numerics, drafter)};
}

Fit fit(const MemoryPlan& plan, const Machine& machine) {
  const PlanRequest& request = plan.request;
  const auto fits = [&](int64_t context, int64_t sequences) {
    return balance(plan, machine, context, sequences).fits();
  };
  const Balance asked = balance(plan, machine, request.context, request.sequences);
  Fit result{.fits = asked.fits(), .room_bytes = asked.room, .need_bytes = asked.need};
  const int64_t positions = plan.config.max_positions;
  result.max_context = largest(positions, [&](int64_t n) { return fits(n, 1); });
  result.max_sequences =
      largest(kMaxSequences, [&](int64_t n) { return fits(request.context, n); });
  result.all_positions = result.max_context == positions;
  return result;
}

}  // namespace dsv4
