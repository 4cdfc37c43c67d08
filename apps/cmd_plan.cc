// dsv4 plan MODEL|--synthetic flash|pro: the memory of a model, and the machines it fits.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/json_report.h"
#include "apps/plan_experts.h"
#include "apps/plan_model.h"
#include "apps/threads.h"
#include "dsv4/base/size_text.h"
#include "dsv4/plan/plan.h"
#include "dsv4/plan/rank_plan.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

// More than two GPUs have not been tried.
bool was_tried(const Machine& machine) {
  return machine.devices <= 2;
}

struct MachineFit {
  Machine machine;
  Fit fit;
};

// The requested machine first, then the others of the table.
std::vector<MachineFit> fits_of(const PlanOptions& options, const MemoryPlan& plan) {
  std::vector<Machine> machines = {parse_machine(options.machine)};
  for (Machine& machine : known_machines()) {
    if (machine.name != machines[0].name) machines.push_back(std::move(machine));
  }
  std::vector<MachineFit> fits;
  for (Machine& machine : machines) {
    limit_machine(options, machine);
    fits.push_back({machine, fit(plan, machine)});
  }
  return fits;
}

Json fit_json(const MachineFit& item) {
  const auto& [machine, fit] = item;
  return {{"machine", machine.name},
          {"devices", machine.devices},
          {"device_bytes", machine.device_bytes},
          {"reserve_bytes", machine.reserve_bytes},
          {"room_bytes", fit.room_bytes},
          {"need_bytes", fit.need_bytes},
          {"fits", fit.fits},
          {"tried", was_tried(machine)},
          {"max_context_tokens", fit.max_context},
          {"max_sequences", fit.max_sequences}};
}

Json kv_parts(const KvRate& rate) {
  Json parts;
  for (const KvRate::Group& group : rate.groups) {
    std::string key = group.name + "_entries";
    std::transform(key.begin(), key.end(), key.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    parts[key] = group.entries;
  }
  parts["index_keys"] = rate.index_keys();
  return parts;
}

Json ranks_json(const std::vector<RankPlan>& ranks) {
  Json list = Json::array();
  for (const RankPlan& rank : ranks) {
    list.push_back({{"rank", rank.id.rank},
                    {"weights_bytes", rank.weights_bytes},
                    {"own_bytes", rank.own_bytes},
                    {"cache_bytes", rank.cache_bytes},
                    {"scratch_bytes", rank.scratch_bytes},
                    {"guesses_bytes", rank.guesses_bytes},
                    {"draft_head_bytes", rank.draft_head_bytes},
                    {"received_bytes_per_token", rank.received_bytes_per_token},
                    {"received_bytes_per_prompt_token", rank.received_bytes_per_prompt_token}});
  }
  return list;
}

void print_plan_json(const PlannedModel& model, const std::vector<MachineFit>& fits,
                     const std::vector<RankPlan>& ranks, const std::optional<ExpertFit>& experts) {
  const MemoryPlan& plan = model.plan;
  const PlanRequest& request = plan.request;
  const Fit& requested = fits[0].fit;
  Json machines = Json::array();
  for (const MachineFit& item : fits) machines.push_back(fit_json(item));
  Json report = {
      {"model", model.title},
      {"recipe", model.recipe.text},
      {"numerics", name(request.numerics)},
      {"context", request.context},
      {"batch", request.sequences},
      {"batch_tokens", request.batch_tokens},
      {"tensors", plan.weights.total.tensors},
      {"weights_bytes", plan.weights.total.bytes},
      {"parts", amounts_json(plan.weights.parts)},
      {"formats", amounts_json(plan.weights.formats)},
      {"codebooks", plan.weights.codebooks},
      {"unconverted_weights", plan.weights.kept},
      {"idle_rules", plan.weights.idle},
      {"kv_bytes_per_token", plan.kv_rate.total()},
      {"kv_parts", kv_parts(plan.kv_rate)},
      {"bytes_per_sequence", plan.sequence.total()},
      {"sequence_parts", {{"window", plan.sequence.window}, {"states", plan.sequence.states}}},
      {"cache_bytes", plan.cache_bytes},
      {"prefix_checkpoint_bytes", plan.checkpoint_bytes},
      {"workspace_bytes", plan.workspace.total()},
      {"draft_head_bytes", plan.draft_head_bytes},
      {"workspace_parts",
       {{"scratch", plan.workspace.step},
        {"logits", plan.workspace.logits},
        {"sampling", plan.workspace.sampling},
        {"symmetric", plan.workspace.symmetric[0] + plan.workspace.symmetric[1]},
        {"cpu_rows", plan.workspace.kernels}}},
      {"machine", fits[0].machine.name},
      {"fits", requested.fits},
      {"max_context_tokens", requested.max_context},
      {"max_sequences", requested.max_sequences},
      {"ranks", ranks_json(ranks)},
      {"machines", machines}};
  if (experts) report["experts_in_host_memory"] = expert_fit_json(*experts);
  fmt::print("{}\n", dump(report));
}

void print_weights(const WeightSummary& weights) {
  fmt::print("weights    {:>11}  {} tensors\n", size_text(weights.total.bytes),
             weights.total.tensors);
  for (const auto& [part, amount] : weights.parts) {
    fmt::print("  {:<15} {:>10} {:>7.2f} bits/weight\n", part, size_text(amount.bytes),
               amount.bits_per_value());
  }
  if (!weights.codebooks.empty()) fmt::print("  codebooks {}\n", to_text(weights.codebooks));
  if (weights.kept > 0)
    fmt::print("  {} weights keep their format despite the recipe, such as {}\n", weights.kept,
               weights.kept_example);
  for (const std::string& rule : weights.idle) fmt::print("  rule {}: matches no weight\n", rule);
}

void print_memory(const MemoryPlan& plan) {
  const PlanRequest& request = plan.request;
  fmt::print("cache      {:>11}  {} x {} tokens, {} numerics\n", size_text(plan.cache_bytes),
             request.sequences, request.context, name(request.numerics));
  std::string parts;
  for (const KvRate::Group& group : plan.kv_rate.groups) {
    parts +=
        fmt::format("{}{} entries {:.2f}", parts.empty() ? "" : ", ", group.name, group.entries);
    if (group.index_keys > 0) parts += fmt::format(", indexer keys {:.2f}", group.index_keys);
  }
  fmt::print("  per token  {:>8.2f} B   {}\n", plan.kv_rate.total(), parts);
  fmt::print("  per sequence {:>8}   window {}, compressor states {}\n",
             size_text(plan.sequence.total()), size_text(plan.sequence.window),
             size_text(plan.sequence.states));
  fmt::print("  per prefix checkpoint at a multiple of 128 tokens {}\n",
             size_text(plan.checkpoint_bytes));
  fmt::print(
      "workspace  {:>11}  steps of {} tokens: scratch {}, logits {}, lists of the sampler {}, CPU "
      "implementations at most {}\n",
      size_text(plan.workspace.total()), request.batch_tokens, size_text(plan.workspace.step),
      size_text(plan.workspace.logits), size_text(plan.workspace.sampling),
      size_text(plan.workspace.kernels));
  if (plan.draft_head_bytes > 0)
    fmt::print(
        "             on a GPU a copy of the head in 4 bits for guesses, {} (--draft-head)\n",
        size_text(plan.draft_head_bytes));
}

void print_ranks(const std::vector<RankPlan>& ranks) {
  fmt::print("\n{:<8} {:>10} {:>10} {:>10} {:>10}  {}\n", "rank", "weights", "its own", "cache",
             "scratch", "received per token");
  for (const RankPlan& rank : ranks) {
    fmt::print("{:<8} {:>10} {:>10} {:>10} {:>10}  {}\n", rank.id.rank,
               size_text(rank.weights_bytes), size_text(rank.own_bytes),
               size_text(rank.cache_bytes), size_text(rank.scratch_bytes),
               size_text(rank.received_bytes_per_token));
  }
  const RankPlan& last = ranks.back();
  if (last.guesses_bytes > 0)
    fmt::print(
        "each has also {} for guesses, and on a GPU {} of a copy of the head in 4 bits "
        "(--draft-head)\n",
        size_text(last.guesses_bytes), size_text(last.draft_head_bytes));
}

// "6.0 GiB per GPU, 1.0 GiB of host memory"
std::string reserves_text(const std::vector<MachineFit>& fits) {
  std::string gpu, host;
  for (const auto& [machine, fit] : fits)
    (machine.host ? host : gpu) = size_text(machine.reserve_bytes);
  return fmt::format("{} per GPU, {} of host memory", gpu, host);
}

void print_machines(const std::vector<MachineFit>& fits) {
  fmt::print("\n{:<8} {:>10} {:>10} {:>10} {:>4}  {:>15} {:>10}\n", "machine", "room", "need",
             "left", "fits", "longest context", "max batch");
  bool untried = false;
  for (const auto& [machine, fit] : fits) {
    const int64_t left = fit.room_bytes - fit.need_bytes;
    untried |= !was_tried(machine);
    fmt::print("{:<8} {:>10} {:>10} {:>10} {:>4}  {:>15} {:>10}{}\n", machine.name,
               size_text(fit.room_bytes), size_text(fit.need_bytes), size_text(left),
               fit.fits ? "yes" : "no",
               fmt::format("{}{}", fit.max_context, fit.all_positions ? " (all)" : ""),
               fit.max_sequences, was_tried(machine) ? "" : "  untried");
  }
  fmt::print("room and need are those of one device; reserved: {}\n", reserves_text(fits));
  if (untried)
    fmt::print(
        "several GPUs share the large weights, and each has the rest and the whole cache; "
        "untried: a step over more than two GPUs has not run yet\n");
}

void show_plan(const PlanOptions& options) {
  const PlannedModel model = plan_model(options);
  const MemoryPlan& plan = model.plan;
  const std::vector<MachineFit> fits = fits_of(options, plan);
  std::vector<RankPlan> ranks;
  if (const int devices = fits[0].machine.devices; devices > 1)
    ranks = plan_ranks(plan.config, model.list, plan.request, devices);
  std::optional<ExpertFit> experts;
  if (options.in_host_memory.wanted())
    experts = expert_fit(options.in_host_memory, plan, fits[0].machine);
  if (options.json) return print_plan_json(model, fits, ranks, experts);
  print_title(model);
  print_weights(plan.weights);
  print_memory(plan);
  if (!ranks.empty()) print_ranks(ranks);
  print_machines(fits);
  if (experts) print_expert_fit(*experts);
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("plan", "Show the memory of a model, and the machines it fits");
  command->footer(
      "Example: dsv4 plan --synthetic flash --experts k3 --gpus 1xh200\n"
      "         dsv4 plan demo --context 4096 --batch 8 --json\n"
      "Several GPUs share the large weights; each has the rest and the whole cache. docs/memory.md "
      "has the formulas.");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("model", options->model, "model folder, ORG/NAME, or demo");
  command->add_option("--synthetic", options->synthetic, "an official release instead of a folder")
      ->check(CLI::IsMember({"flash", "pro"}))
      ->option_text("flash|pro");
  command->add_option(
      "--experts", options->experts,
      "as if quantized: format of routed experts; --synthetic: also mxfp4 or nvfp4");
  command->add_option("--dense", options->dense, "as if quantized: format of the FP8 weights");
  command->add_option("--recipe", options->recipe, "as if quantized: recipe file");
  command
      ->add_option("--gpus", options->machine, "cpu, or a number of h100 or h200, such as 2xh200")
      ->option_text("NxGPU")
      ->capture_default_str();
  add_placement(*command, options->placement);
  command->add_option("--context", options->context, "tokens per sequence")
      ->check(integer_in(1, 1 << 30));
  command->add_option("--batch", options->sequences, "concurrent sequences")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--batch-tokens", options->batch_tokens, "tokens per step")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--reserve", options->reserve_gib, "GiB to leave free on each device")
      ->check(number_in(0, 1 << 20));
  add_plan_experts(*command, options->in_host_memory);
  command->add_flag("--mtp", options->mtp, "include the drafter, as --speculate mtp runs it");
  command->add_flag("--dspark", options->dspark, "include it, as --speculate dspark runs it");
  add_numerics(*command, options->numerics);
  add_threads(*command);
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &action] { action = [options] { show_plan(*options); }; });
}

}  // namespace dsv4::apps
