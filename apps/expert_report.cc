#include "apps/expert_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/common.h"
#include "dsv4/base/size_text.h"
#include "dsv4/engine/expert_store.h"
#include "dsv4/model/model.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kReport = "experts_in_host_memory";

}  // namespace

ExpertStats expert_stats(const Model& model) {
  const ExpertStore* const store = model.expert_store();
  return store == nullptr ? ExpertStats{} : store->read_stats();
}

Json expert_report(const Model& model, const ExpertStats& before) {
  const ExpertStore* const store = model.expert_store();
  if (store == nullptr) return nullptr;
  const ExpertPlaces& places = store->places();
  const ExpertStats stats = expert_stats(model).since(before);
  const ExpertCounts counts = stats.sum();
  return {{"resident", places.resident()},
          {"fixed", places.all() - places.homes()},
          {"transient", places.transient()},
          {"experts", places.all()},
          {"hits", counts.hits},
          {"fetched", counts.moves},
          {"read_at_home", counts.read_at_home},
          {"bad_ids", counts.impossible},
          {"hit_rate", counts.hit_rate()},
          {"link_bytes", counts.link_bytes()},
          {"prompt_steps", stats.prompt_steps},
          {"prompt_link_bytes", stats.prompt_bytes}};
}

std::string expert_text(const Model& model) {
  const ExpertStats stats = expert_stats(model);
  if (!stats.any()) return {};
  const ExpertCounts counts = stats.sum();
  return fmt::format(
      "{:.1f} % of chosen experts in GPU memory, {} over the link while decoding and {} in prompts",
      100 * counts.hit_rate(), size_text(counts.link_bytes()), size_text(stats.prompt_bytes));
}

void add_expert_report(const Model& model, const ExpertStats& before, int64_t steps,
                       double step_seconds, Json& row) {
  Json report = expert_report(model, before);
  if (report.is_null()) return;
  const auto bytes = static_cast<double>(report["link_bytes"].get<int64_t>() +
                                         report["prompt_link_bytes"].get<int64_t>());
  const double of_step = bytes / static_cast<double>(steps);
  report["link_bytes_per_step"] = of_step;
  report["link_bytes_per_s"] = of_step / step_seconds;  // over whole steps, not copies alone
  row[kReport] = std::move(report);
}

std::string expert_row_text(const Json& row) {
  if (!row.contains(kReport)) return {};
  const Json& report = row[kReport];
  std::string text;
  if (report["prompt_steps"] == 0)
    text = fmt::format("{:.1f} % of chosen experts in GPU memory, ",
                       100 * report["hit_rate"].get<double>());
  return text + size_text(static_cast<int64_t>(report["link_bytes_per_step"].get<double>())) +
         " of a step over the link";
}

}  // namespace dsv4::apps
