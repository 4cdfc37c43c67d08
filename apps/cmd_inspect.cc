// dsv4 inspect MODEL|ops|env|device: shows the contents of a checkpoint, the implementations of
// ops, the environment variables or the GPUs.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/inspect_device.h"
#include "apps/inspect_model.h"

#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/inspect.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

void inspect_ops(bool json) {
  Json list = Json::array();
  for (const OpImpl& impl : all_op_impls()) {
    if (json) {
      list.push_back({{"op", impl.op},
                      {"impl", impl.impl},
                      {"arch", name(impl.arch)},
                      {"batch_invariant", impl.batch_invariant}});
    } else {
      fmt::print("{:<14} {:<12} {:<6} {}\n", impl.op, impl.impl, name(impl.arch),
                 impl.batch_invariant ? "batch invariant" : "depends on the batch");
    }
  }
  if (json) fmt::print("{}\n", Json{{"ops", list}}.dump());
}

void inspect_env(bool json) {
  Json list = Json::array();
  for (const EnvVar& variable : env_table()) {
    const std::string value = env(variable.name);
    if (json) {
      list.push_back({{"name", variable.name},
                      {"value", value},
                      {"default", variable.fallback},
                      {"help", variable.help}});
    } else {
      fmt::print("{}={}\n  {}\n  default: {}\n", variable.name, value, variable.help,
                 variable.fallback);
    }
  }
  if (json) fmt::print("{}\n", Json{{"env", list}}.dump());
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show a model, the op table, the environment or the GPUs");
  command->footer("Example: dsv4 inspect demo    dsv4 inspect ops --json");
  struct Options {
    std::string what;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  command->add_option("what", options->what, "model folder, demo, ops, env or device")->required();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &action] {
    action = [options] {
      if (options->what == "ops") return inspect_ops(options->json);
      if (options->what == "env") return inspect_env(options->json);
      if (options->what == "device") return inspect_device(options->json);
      inspect_model(options->what, options->json);
    };
  });
}

}  // namespace dsv4::apps
