// dsv4 inspect MODEL|ops|env: what a checkpoint holds, which rows exist, which variables are read.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "dsv4/base/env.h"
#include "dsv4/model/model.h"
#include "dsv4/ops/inspect.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

void inspect_ops(bool json) {
  Json list = Json::array();
  for (const OpRow& row : all_op_rows()) {
    if (json) {
      list.push_back({{"op", row.op},
                      {"row", row.row},
                      {"arch", name(row.arch)},
                      {"batch_invariant", row.batch_invariant}});
    } else {
      fmt::print("{:<14} {:<12} {:<6} {}\n", row.op, row.row, name(row.arch),
                 row.batch_invariant ? "batch invariant" : "depends on the batch");
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

struct Totals {
  int64_t tensors = 0, bytes = 0;
};

Json describe(const Model& model) {
  const ModelConfig& c = model.config();
  Json layers = Json::array();
  for (const LayerSpec& layer : model.schedule()) {
    layers.push_back(fmt::format("{}{}", name(layer.kind), layer.hash_routing ? "+hash" : ""));
  }
  std::map<std::string, Totals> by_dtype;
  Totals all;
  for (const auto& [tensor, stored] : model.checkpoint().tensors()) {
    for (Totals* totals : {&all, &by_dtype[std::string(name(stored.view.dtype))]}) {
      ++totals->tensors;
      totals->bytes += stored.view.bytes();
    }
  }
  Json dtypes = Json::object();
  for (const auto& [dtype, totals] : by_dtype)
    dtypes[dtype] = {{"tensors", totals.tensors}, {"bytes", totals.bytes}};
  return {{"folder", model.checkpoint().folder()},
          {"hidden_size", c.hidden_size},
          {"layers", layers},
          {"heads", c.num_heads},
          {"head_dim", c.head_dim},
          {"experts", c.num_experts},
          {"experts_per_token", c.experts_per_token},
          {"vocab", c.vocab_size},
          {"max_positions", c.max_positions},
          {"window", c.window},
          {"index_topk", c.index_topk},
          {"tensors", all.tensors},
          {"weights_bytes", all.bytes},
          {"dtypes", dtypes},
          {"unknown_config_keys", c.unknown},
          {"shared_experts", c.shared_experts},
          {"skipped_drafter_tensors", model.weights().skipped},
          {"unused_tensors", model.weights().unused}};
}

// Runs of equal layers, "2 x SWA+hash, 1 x CSA".
std::string schedule_line(const Json& layers) {
  std::string line;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    line +=
        fmt::format("{}{} x {}", line.empty() ? "" : ", ", end - i, layers[i].get<std::string>());
    i = end;
  }
  return line;
}

// The drafter's tensors (mtp.*), experts counted, the others by name.
void print_skipped(const Json& tensors) {
  if (tensors.empty()) return;
  fmt::print("skipped    {} drafter tensors: speculation is not built in\n", tensors.size());
  int64_t experts = 0;
  for (const Json& tensor : tensors) {
    const auto name = tensor.get<std::string>();
    if (name.find(".experts.") != std::string::npos) {
      ++experts;
    } else {
      fmt::print("  {}\n", name);
    }
  }
  if (experts > 0) fmt::print("  and {} of its experts\n", experts);
}

// File and tensor names may hold any bytes; JSON may not.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void inspect_model(const std::string& name_or_folder, bool json) {
  const Model model = Model::load(find_model(name_or_folder));
  const Json info = describe(model);
  if (json) {
    fmt::print("{}\n", dump(info));
    return;
  }
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  fmt::print("{}\n", info["folder"].get<std::string>());
  fmt::print("layers     {}\n", schedule_line(info["layers"]));
  fmt::print("width      hidden {}, {} heads of {}, vocabulary {}\n", info["hidden_size"].dump(),
             info["heads"].dump(), info["head_dim"].dump(), info["vocab"].dump());
  fmt::print("experts    {}, {} per token, {} shared\n", info["experts"].dump(),
             info["experts_per_token"].dump(), info["shared_experts"].dump());
  fmt::print("attention  window {}, indexer top {}, up to {} positions\n", info["window"].dump(),
             info["index_topk"].dump(), info["max_positions"].dump());
  fmt::print("tensors    {} in {:.1f} MiB\n", info["tensors"].dump(),
             mib(info["weights_bytes"].get<int64_t>()));
  for (const auto& [dtype, totals] : info["dtypes"].items()) {
    fmt::print("  {:<8} {:>7} tensors {:>10.1f} MiB\n", dtype, totals["tensors"].dump(),
               mib(totals["bytes"].get<int64_t>()));
  }
  for (const Json& key : info["unknown_config_keys"])
    fmt::print("unknown config key: {}\n", key.get<std::string>());
  print_skipped(info["skipped_drafter_tensors"]);
  for (const Json& tensor : info["unused_tensors"])
    fmt::print("unused tensor: {}\n", tensor.get<std::string>());
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("inspect", "Look into a model, the op table or the environment");
  command->footer("Example: dsv4 inspect demo    dsv4 inspect ops --json");
  struct Options {
    std::string what;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  command->add_option("what", options->what, "model folder, demo, ops or env")->required();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &action] {
    action = [options] {
      if (options->what == "ops") return inspect_ops(options->json);
      if (options->what == "env") return inspect_env(options->json);
      inspect_model(options->what, options->json);
    };
  });
}

}  // namespace dsv4::apps
