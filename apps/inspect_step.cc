#include "apps/inspect_step.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/bench_model.h"
#include "apps/common.h"
#include "apps/plan_model.h"
#include "dsv4/base/error.h"
#include "dsv4/plan/step_table.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostTokens = 65536;

std::string reasons_text(const StepCalls& calls) {
  std::string text;
  for (const Refusal& refusal : calls.refusals)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", refusal.impl, refusal.reason);
  return text;
}

Json table_json(const StepTable& table) {
  Json list = Json::array();
  for (const StepCalls& calls : table.calls) {
    Json refusals = Json::array();
    for (const Refusal& refusal : calls.refusals)
      refusals.push_back({{"impl", refusal.impl}, {"reason", refusal.reason}});
    list.push_back({{"depth", calls.depth},
                    {"op", calls.op},
                    {"impl", calls.impl},
                    {"calls", calls.calls},
                    {"refusals", refusals}});
  }
  const char* kind = table.draft ? "draft" : table.decode ? "decode" : "prefill";
  return {{"tokens", table.tokens}, {"kind", kind}, {"calls", list}};
}

void print_table(const StepTable& table) {
  fmt::print("{} tokens: {}\n", table.tokens,
             table.draft    ? "guesses of the drafter for so many sequences"
             : table.decode ? "one of each sequence"
                            : "a chunk of one prompt");
  for (const StepCalls& calls : table.calls) {
    const std::string op = fmt::format("{:>{}}{}", "", 2 * calls.depth, calls.op);
    fmt::print("{:>6}  {:<26}  {:<20}  {}\n", calls.calls, op, calls.impl, reasons_text(calls));
  }
}

}  // namespace

void add_step_options(CLI::App& command, InspectStepOptions& options) {
  command
      .add_option(
          "--step", options.step,
          "ops: the implementation of each call of a step, and why the others do not take it")
      ->check(CLI::IsMember({"flash", "pro"}))
      ->option_text("flash|pro");
  command.add_option(
      "--experts", options.experts,
      "--step, experts: as if quantized, format of routed experts; also mxfp4 or nvfp4 "
      "where the model is synthetic");
  command.add_option("--dense", options.dense, "--step, experts: format of the FP8 weights");
  command.add_option("--recipe", options.recipe, "--step, experts: recipe file");
  command
      .add_option(
          "--tokens", options.tokens,
          fmt::format("--step: tokens of a step, a list; more than {} are a chunk of a prompt",
                      kMostDecodeTokens))
      ->capture_default_str();
  command
      .add_option("--context", options.context,
                  "--step, experts: tokens of a sequence; experts: 131072 where it is not given")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option(
          "--device-info", options.gpu,
          "--step, experts: the GPU, which need not be there (default: the host; experts: h200)")
      ->check(CLI::IsMember({"h100", "h200"}))
      ->option_text("h100|h200");
  command.add_flag("--mtp", options.mtp,
                   "--step: with the MTP block, and the calls of a pass of it");
  command.add_flag("--dspark", options.dspark,
                   "--step: with DSpark's stages, and the calls of a block of it");
  add_deterministic(command, options.deterministic);
  add_choices(command, options.choices);
  add_numerics(command, options.numerics);
}

void inspect_step(const InspectStepOptions& options, bool json) {
  const std::vector<StepTable> tables =
      step_tables({.release = options.step,
                   .formats = read_formats(options.experts, options.dense, options.recipe),
                   .gpu = options.gpu,
                   .tokens = parse_numbers("--tokens", options.tokens, kMostTokens),
                   .context = options.context,
                   .numerics = options.numerics,
                   .batch_invariant = options.deterministic,
                   .choices = options.choices,
                   .drafter = wanted_drafter(options.mtp, options.dspark)});
  if (!json) {
    for (const StepTable& table : tables) print_table(table);
    return;
  }
  Json list = Json::array();
  for (const StepTable& table : tables) list.push_back(table_json(table));
  fmt::print("{}\n", Json{{"step", options.step},
                          {"experts", options.experts},
                          {"dense", options.dense},
                          {"device", options.gpu.empty() ? "cpu" : options.gpu},
                          {"context", options.context},
                          {"numerics", name(options.numerics)},
                          {"deterministic", options.deterministic},
                          {"tables", list}}
                         .dump());
}

}  // namespace dsv4::apps
