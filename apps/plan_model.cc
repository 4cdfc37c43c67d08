#include "apps/plan_model.h"

#include <fmt/core.h>

#include <algorithm>

#include "apps/common.h"
#include "apps/hub_models.h"
#include "apps/threads.h"
#include "dsv4/base/error.h"
#include "dsv4/convert/stored_tensors.h"
#include "dsv4/hub/hub_model.h"
#include "dsv4/model/model.h"
#include "dsv4/model/released.h"

namespace dsv4::apps {
namespace {

constexpr int64_t kDefaultPlanContext = 131072;

struct Source {
  std::string title;
  ModelConfig config;
  StoredTensors tensors;
};

// Config and headers of a model at the hub, which is not fetched.
Model read_hub_headers(const HubName& name, DrafterKind wanted) {
  const HubPolicy policy = hub_policy();
  print_notice(fmt::format("note: {} is not in the cache: its headers are read from {}",
                           name.text(), policy.endpoint));
  HubModel model(name, policy, print_notice);
  const ModelConfig config =
      parse_config(read_hub_config(model, name.text()), name.text() + "/config.json");
  return Model(std::make_shared<const ModelSpec>(config, open_hub_checkpoint(model, name.text())),
               {}, wanted);
}

Model model_of(const std::string& model, DrafterKind wanted) {
  const std::optional<HubName> name = hub_name_to_fetch(model);
  return name ? read_hub_headers(*name, wanted) : Model::load(find_model(model), wanted);
}

// A checkpoint is validated as for a run, except that its weights are not read.
Source source_of(const PlanOptions& options, WeightFormat released) {
  const DrafterKind drafter = wanted_drafter(options.mtp, options.dspark);
  if (options.model.empty() == options.synthetic.empty())
    fail(ErrorCode::kBadInput, "{} needs either a model or --synthetic flash|pro", options.command);
  if (!options.synthetic.empty()) {
    const ModelConfig config = released_config(options.synthetic, drafter);
    return {.title = "official " + options.synthetic,
            .config = config,
            .tensors = stored_tensors(
                official_tensor_list(config, drafter != DrafterKind::kNone, released))};
  }
  const Model model = model_of(options.model, drafter);
  StoredTensors tensors = stored_tensors(model.checkpoint());
  if (drafter == DrafterKind::kNone) drop_drafter(tensors);
  return {.title = model.checkpoint().folder(),
          .config = model.config(),
          .tensors = std::move(tensors)};
}

}  // namespace

DrafterKind wanted_drafter(bool mtp, bool dspark) {
  if (mtp && dspark) fail(ErrorCode::kBadInput, "--mtp and --dspark: a model has one drafter");
  return mtp ? DrafterKind::kMtp : dspark ? DrafterKind::kDspark : DrafterKind::kNone;
}

PlannedModel plan_model(const PlanOptions& options) {
  auto [recipe, released] =
      options.synthetic.empty()
          ? SyntheticFormats(read_recipe(options.experts, options.dense, options.recipe))
          : read_formats(options.experts, options.dense, options.recipe);
  Source source = source_of(options, released);
  ConvertList list = convert_list(source.tensors, recipe, source.config.o_groups);
  const int64_t positions = source.config.max_positions;
  MemoryPlan plan =
      plan_memory(source.config, list,
                  {.numerics = options.numerics,
                   .context = options.context.value_or(std::min(kDefaultPlanContext, positions)),
                   .sequences = options.sequences,
                   .batch_tokens = options.batch_tokens,
                   .threads = num_threads(),
                   .drafter = options.mtp || options.dspark,
                   .placement = options.placement});
  return {.title = std::move(source.title),
          .recipe = std::move(recipe),
          .list = std::move(list),
          .plan = std::move(plan)};
}

void limit_machine(const PlanOptions& options, Machine& machine) {
  if (!machine.host && options.in_host_memory.gpu)
    machine.device_bytes = std::min(machine.device_bytes, *options.in_host_memory.gpu);
  if (options.reserve_gib)
    machine.reserve_bytes =
        static_cast<int64_t>(std::min(*options.reserve_gib * static_cast<double>(kGiB),
                                      static_cast<double>(machine.device_bytes)));
}

void print_title(const PlannedModel& model) {
  fmt::print("{}{}\n", model.title, model.recipe.rules.empty() ? "" : ", converted by the recipe");
}

}  // namespace dsv4::apps
