#include "apps/plan_experts.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "apps/common.h"
#include "apps/json_report.h"
#include "dsv4/base/error.h"
#include "dsv4/base/size_text.h"

namespace dsv4::apps {

void add_plan_experts(CLI::App& command, ExpertOptions& options) {
  add_expert_sizes(command, options,
                   "plan a GPU that holds some of the experts, and host memory with the others: "
                   "memory for experts, or all that there is room for");
}

ExpertFit expert_fit(const ExpertOptions& options, const MemoryPlan& plan, const Machine& machine) {
  const Machine host = parse_machine("cpu");
  return fit_experts(
      plan, machine,
      {.gpu_bytes = options.gpu_bytes(),
       .host_bytes = options.host_memory.value_or(host.device_bytes - host.reserve_bytes)});
}

nlohmann::ordered_json expert_fit_json(const ExpertFit& fit) {
  const ExpertPlaces& places = fit.places;
  return {{"experts", places.all()},
          {"expert_bytes", places.transient_bytes()},  // of the largest
          {"all_bytes", fit.all_bytes()},
          {"gpu_room_bytes", fit.gpu_room},
          {"gpu_need_bytes", fit.gpu_need()},
          {"host_room_bytes", fit.host_room},
          {"resident", places.resident()},
          {"resident_share", fit.share()},
          {"transient", places.transient()},
          {"gpu_bytes", places.gpu_bytes()},
          {"fixed", fit.fixed()},
          {"host_bytes", places.host_bytes()},
          {"token_bytes", fit.token_bytes()},
          {"uniform_link_bytes", static_cast<int64_t>(fit.link_bytes())},
          {"uniform_link_ms", 1e3 * fit.link_seconds()}};
}

void print_expert_fit(const ExpertFit& fit) {
  const ExpertPlaces& places = fit.places;
  fmt::print("\nexperts    {:>11}  {} of {} in GPU memory ({:.1f} %), {} with {} in transit\n",
             size_text(fit.all_bytes()), places.resident(), places.all(), 100 * fit.share(),
             size_text(places.gpu_bytes()), places.transient());
  fmt::print("  GPU memory  {:>9}   of {}: dense weights and cache {}, experts {}\n",
             size_text(fit.gpu_need()), size_text(fit.gpu_room), size_text(fit.dense_bytes),
             size_text(places.gpu_bytes()));
  fmt::print("  host memory {:>9}   of {}: copies of {}; {} have none and stay on the GPU\n",
             size_text(places.host_bytes()), size_text(fit.host_room), places.homes(), fit.fixed());
  fmt::print("  a token reads {} of experts, {} of it over the link if all are equally likely\n",
             size_text(fit.token_bytes()), size_text(static_cast<int64_t>(fit.link_bytes())));
  fmt::print("  these take {:.0f} ms at {:.0f} GB/s (PCIe 5), beside the step of a GPU with all\n",
             1e3 * fit.link_seconds(), 1e-9 * kLinkBytesPerSecond);
}

namespace {

nlohmann::ordered_json expert_layers_json(const ExpertPlaces& places) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (size_t l = 0; l < places.place_bytes.size(); ++l) {
    const int64_t homes = places.experts - places.fixed[l], bytes = places.place_bytes[l];
    layers.push_back({{"layer", l},
                      {"experts", places.experts},
                      {"expert_bytes", bytes},
                      {"fixed", places.fixed[l]},
                      {"slots", places.slots[l]},
                      {"homes", homes},
                      {"gpu_bytes", places.kept(static_cast<int64_t>(l)) * bytes},
                      {"host_bytes", homes * bytes}});
  }
  return layers;
}

// Layers with equal numbers make one line.
void print_expert_layers(const ExpertPlaces& places) {
  fmt::print("\n{:<9} {:>9} {:>10} {:>7} {:>7} {:>12} {:>10} {:>12}\n", "layers", "experts",
             "of bytes", "fixed", "slots", "GPU memory", "copies", "host memory");
  const auto same = [&](size_t a, size_t b) {
    return places.place_bytes[a] == places.place_bytes[b] && places.fixed[a] == places.fixed[b] &&
           places.slots[a] == places.slots[b];
  };
  const size_t layers = places.place_bytes.size();
  for (size_t first = 0, end = 0; first < layers; first = end) {
    while (end < layers && same(first, end)) ++end;
    const auto count = static_cast<int64_t>(end - first);
    const int64_t bytes = places.place_bytes[first], homes = places.experts - places.fixed[first];
    fmt::print("{:<9} {:>9} {:>10} {:>7} {:>7} {:>12} {:>10} {:>12}\n",
               count == 1 ? fmt::format("{}", first) : fmt::format("{} - {}", first, end - 1),
               places.experts, size_text(bytes), places.fixed[first], places.slots[first],
               size_text(count * places.kept(static_cast<int64_t>(first)) * bytes), homes,
               size_text(count * homes * bytes));
  }
  if (places.half > 0)
    fmt::print("experts of each layer; all layers share 2 x {} transient places in {}\n",
               places.half, size_text(places.transient() * places.transient_bytes()));
}

}  // namespace

void add_inspect_experts(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--synthetic", options.synthetic,
                  "experts: an official release instead of a folder")
      ->check(CLI::IsMember({"flash", "pro"}))
      ->option_text("flash|pro");
  add_expert_sizes(command, options.in_host_memory,
                   "experts: GPU memory for them, or all that there is room for");
  command.add_option("--batch", options.sequences, "experts: concurrent sequences")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--batch-tokens", options.batch_tokens, "experts: tokens per step")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--reserve", options.reserve_gib, "experts: GiB to leave free on the GPU")
      ->check(number_in(0, 1 << 20));
}

void inspect_experts(const PlanOptions& options, bool json) {
  if (!options.in_host_memory.wanted())
    fail(ErrorCode::kBadInput, "inspect experts needs --experts-memory {}", "SIZE|auto");
  const PlannedModel model = plan_model(options);
  Machine machine = parse_machine(options.machine);
  limit_machine(options, machine);
  const ExpertFit fit = expert_fit(options.in_host_memory, model.plan, machine);
  if (json) {
    nlohmann::ordered_json report = {{"model", model.title}, {"machine", machine.name}};
    report.update(expert_fit_json(fit));
    report["layers"] = expert_layers_json(fit.places);
    fmt::print("{}\n", dump(report));
    return;
  }
  print_title(model);
  print_expert_fit(fit);
  print_expert_layers(fit.places);
}

}  // namespace dsv4::apps
