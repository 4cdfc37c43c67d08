#include "apps/inspect_model.h"

#include "apps/common.h"
#include "apps/json_report.h"
#include "dsv4/base/error.h"
#include "dsv4/convert/ledger.h"
#include "dsv4/convert/stored_tensors.h"
#include "dsv4/model/model.h"
#include "dsv4/plan/weight_summary.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxEval = 100;  // characters of an evaluation's line

Json ledger_json(const Ledger& ledger) {
  Json totals = Json::object();
  for (const auto& [part, total] : ledger.totals()) {
    totals[part] = {{"weights", total.weights},
                    {"bytes", total.bytes},
                    {"bits_per_weight", total.bits()},
                    {"exact", total.exact},
                    {"mean_sqnr_db", total.mean_sqnr_db ? Json(*total.mean_sqnr_db) : Json()}};
  }
  return {{"tool", ledger.tool},
          {"source", ledger.source},
          {"options", ledger.options},
          {"totals", totals},
          {"exceptions", ledger.exceptions.size()},
          {"evals", ledger.evals}};
}

Json describe(const Model& model, const WeightSummary& weights,
              const std::optional<Ledger>& ledger) {
  const ModelConfig& c = model.config();
  Json layers = Json::array();
  for (const LayerSpec& layer : model.schedule())
    layers.push_back(fmt::format("{}{}", name(layer.kind), layer.hash_routing ? "+hash" : ""));
  return {{"folder", model.checkpoint().folder()},
          {"hidden_size", c.hidden_size},
          {"layers", layers},
          {"schedule", schedule_text(model.schedule())},
          {"heads", c.num_heads},
          {"head_dim", c.head_dim},
          {"experts", c.num_experts},
          {"experts_per_token", c.experts_per_token},
          {"shared_experts", c.shared_experts},
          {"vocab", c.vocab_size},
          {"max_positions", c.max_positions},
          {"window", c.window},
          {"index_topk", c.index_topk},
          {"tensors", weights.total.tensors},
          {"weights_bytes", weights.total.bytes},
          {"dtypes", amounts_json(weights.dtypes)},
          {"formats", amounts_json(weights.formats)},
          {"parts", amounts_json(weights.parts)},
          {"unknown_config_keys", c.unknown},
          {"skipped_drafter_tensors", model.weights().skipped},
          {"unused_tensors", model.weights().unused},
          {"ledger", ledger ? ledger_json(*ledger) : Json()}};
}

void print_architecture(const Model& model) {
  const ModelConfig& c = model.config();
  fmt::print("{}\n", model.checkpoint().folder());
  fmt::print("layers     {}: {}\n", c.num_layers, schedule_text(model.schedule()));
  fmt::print("width      hidden {}, {} heads of {}, vocabulary {}\n", c.hidden_size, c.num_heads,
             c.head_dim, c.vocab_size);
  fmt::print("experts    {}, {} per token, {} shared\n", c.num_experts, c.experts_per_token,
             c.shared_experts);
  fmt::print("attention  window {}, indexer top {}, up to {} positions\n", c.window, c.index_topk,
             c.max_positions);
}

void print_table(const char* title, const std::map<std::string, Amount>& table) {
  fmt::print("{}\n", title);
  for (const auto& [name, amount] : table) {
    fmt::print("  {:<15} {:>7} tensors {:>10} {:>7.2f} bits/value\n", name, amount.tensors,
               size_text(amount.bytes), amount.bits_per_value());
  }
}

void print_ledger(const Ledger& ledger) {
  fmt::print("ledger     by {}\n", ledger.tool);
  for (const auto& [part, total] : ledger.totals()) {
    fmt::print("  {:<15} {:>7} weights {:>10} {:>7.2f} bits  {}\n", part, total.weights,
               size_text(total.bytes), total.bits(),
               total.mean_sqnr_db ? fmt::format("{:.2f} dB", *total.mean_sqnr_db) : "exact");
  }
  if (!ledger.exceptions.empty())
    fmt::print("  {} weights kept their format, such as {}: {}\n", ledger.exceptions.size(),
               ledger.exceptions[0].name, ledger.exceptions[0].why);
  for (const nlohmann::json& eval : ledger.evals) {
    const std::string line = dump(eval);
    fmt::print("  eval {}{}\n", line.substr(0, kMaxEval), line.size() > kMaxEval ? "..." : "");
  }
}

// Names of one kind: their number and the first.
void print_names(const char* what, const std::vector<std::string>& names, const char* why) {
  if (!names.empty())
    fmt::print("{:<10} {} {}, such as {}\n", what, names.size(), why, names.front());
}

}  // namespace

void inspect_model(const std::string& name_or_folder, bool json) {
  const Model model = Model::load(find_model(name_or_folder));
  const WeightSummary weights = summarize(convert_list(stored_tensors(model.checkpoint()), {}));
  const std::optional<Ledger> ledger = read_ledger(model.checkpoint().folder());
  if (json) {
    fmt::print("{}\n", dump(describe(model, weights, ledger)));
    return;
  }
  print_architecture(model);
  fmt::print("tensors    {} in {}\n", weights.total.tensors, size_text(weights.total.bytes));
  print_table("by stored dtype", weights.dtypes);
  print_table("by weight format (vectors and tables are other)", weights.formats);
  print_table("by part", weights.parts);
  if (ledger) print_ledger(*ledger);
  print_names("skipped", model.weights().skipped, "drafter tensors (speculation is not built in)");
  print_names("unused", model.weights().unused, "tensors that are not needed");
  print_names("unknown", model.config().unknown, "config keys");
}

}  // namespace dsv4::apps
