// dsv4 inspect MODEL|ops|env|device: shows the contents of a checkpoint, the implementations of
// ops or of one step, the environment variables or the GPUs. dsv4 inspect prompt|completion MODEL:
// shows the chat encoding; dsv4 inspect experts MODEL: experts in host memory.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/inspect.h"
#include "apps/inspect_step.h"
#include "apps/json_report.h"
#include "apps/plan_experts.h"
#include "apps/threads.h"

#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/ops/inspect.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxValue = 1000;  // bytes of a variable's value

void inspect_ops(bool json) {
  Json list = Json::array();
  for (const OpImpl& impl : all_op_impls()) {
    const std::string_view deviation = official_deviation(impl.op, impl.impl);
    if (json) {
      list.push_back({{"op", impl.op},
                      {"impl", impl.impl},
                      {"arch", name(impl.arch)},
                      {"batch_invariant", impl.batch_invariant},
                      {"official_deviation", deviation}});
    } else {
      fmt::print("{:<22} {:<18} {:<6} {}{}{}\n", impl.op, impl.impl, name(impl.arch),
                 impl.batch_invariant ? "batch invariant" : "depends on the batch",
                 deviation.empty() ? "" : "; ", deviation);
    }
  }
  if (json) fmt::print("{}\n", Json{{"ops", list}}.dump());
}

void inspect_env(bool json) {
  Json list = Json::array();
  for (const EnvVar& variable : env_table()) {
    std::string value = env(variable.name);
    if (variable.secret && !value.empty()) value = "(set)";
    if (json) {
      list.push_back({{"name", variable.name},
                      {"value", value},
                      {"default", variable.fallback},
                      {"help", variable.help}});
    } else {
      fmt::print("{}={}\n  {}\n  default: {}\n", variable.name, printable(value, kMaxValue),
                 variable.help, variable.fallback);
    }
  }
  if (json) {
    fmt::print("{}\n", dump(Json{{"env", list}, {"threads", threads_json()}}));
  } else {
    fmt::print("threads {}\n", threads_text());
  }
}

struct InspectOptions {
  std::string what;
  bool json = false, verify = false;
  InspectChatOptions chat;
  InspectStepOptions step;
  PlanOptions experts;
};

// Several options are shared with other words.
PlanOptions expert_options(const InspectOptions& options) {
  PlanOptions plan = options.experts;
  plan.command = "inspect experts";
  plan.model = options.chat.model;
  plan.experts = options.step.experts;
  plan.dense = options.step.dense;
  plan.recipe = options.step.recipe;
  plan.machine = options.step.gpu.empty() ? "1xh200" : "1x" + options.step.gpu;
  plan.numerics = options.step.numerics;
  plan.mtp = options.step.mtp, plan.dspark = options.step.dspark;
  return plan;
}

// Options of `inspect prompt`.
void add_chat_options(CLI::App& command, InspectChatOptions& options) {
  command.add_option("--effort-profile", options.effort_profile, "texts of reasoning efforts")
      ->check(CLI::IsMember({"auto", "official", "preview"}))
      ->option_text("auto|official|preview");
  command.add_option("--thinking", options.thinking, "where a request does not say")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->option_text("auto|on|off");
  command.add_flag("--lenient-tools", options.lenient_tools,
                   "accept tool results that match no call");
  command.add_flag("--require-reasoning", options.require_reasoning,
                   "refuse a history whose reasoning is missing");
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show a model, the op table, the environment or the GPUs");
  command->footer(
      "Example: dsv4 inspect demo    dsv4 inspect ops --json\n"
      "         dsv4 inspect ops --step flash --experts k3-e4m3 --tokens 1,8,32,4096 --device-info "
      "h200\n"
      "         echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | "
      "dsv4 inspect prompt demo");
  auto options = std::make_shared<InspectOptions>();
  command->add_option(
      "what", options->what,
      "model folder, ORG/NAME, demo, ops, env or device; prompt, completion or experts of a model");
  command->add_option("model", options->chat.model,
                      "of prompt and completion: a folder with tokenizer.json, or demo; of "
                      "experts also ORG/NAME");
  command->add_flag("--json", options->json, "print one JSON object");
  command->add_flag("--verify", options->verify,
                    "of a model: read every weight and look for values that are no numbers");
  add_chat_options(*command, options->chat);
  add_step_options(*command, options->step);
  add_inspect_experts(*command, options->experts);
  command->callback([options, command, &action] {
    if (command->count("--context") > 0) options->experts.context = options->step.context;
    action = [options] {
      if (options->what.empty())
        fail(ErrorCode::kBadInput, "inspect what? A model folder, demo, ops, env or device");
      const bool prompt = options->what == "prompt", completion = options->what == "completion";
      if (prompt || completion) {
        if (options->chat.model.empty())
          fail(ErrorCode::kBadInput, "inspect {} needs a model folder, or demo", options->what);
        return prompt ? inspect_prompt(options->chat) : inspect_completion(options->chat);
      }
      if (options->what == "experts")
        return inspect_experts(expert_options(*options), options->json);
      if (!options->chat.model.empty())
        fail(ErrorCode::kBadInput, "inspect {} takes no second word", options->what);
      if (options->experts.in_host_memory.wanted() || !options->experts.synthetic.empty())
        fail(ErrorCode::kBadInput,
             "--experts-memory and --synthetic show how experts lie: write inspect experts {}",
             options->what);
      if (!options->step.step.empty() && options->what != "ops")
        fail(ErrorCode::kBadInput, "--step shows the calls of a step: write inspect ops --step {}",
             options->step.step);
      if (options->what == "ops" && !options->step.step.empty())
        return inspect_step(options->step, options->json);
      if (options->what == "ops") return inspect_ops(options->json);
      if (options->what == "env") return inspect_env(options->json);
      if (options->what == "device") return inspect_device(options->json);
      inspect_model(options->what, options->json, options->verify);
    };
  });
}

}  // namespace dsv4::apps
