#include "apps/inspect.h"

#include <fmt/ranges.h>

#include "apps/common.h"
#include "apps/generation.h"
#include "apps/json_report.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/size_text.h"
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
          {"codebooks", codebooks_of(model)},
          {"parts", amounts_json(weights.parts)},
          {"drafter", model.weights().drafter ? Json(name(model.weights().drafter->kind)) : Json()},
          {"unknown_config_keys", c.unknown},
          {"skipped_drafter_tensors", model.weights().skipped},
          {"unused_tensors", model.weights().unused},
          {"ledger", ledger ? ledger_json(*ledger) : Json()}};
}

void print_architecture(const Model& model) {
  const ModelConfig& c = model.config();
  fmt::print("{}\n", printable(model.checkpoint().folder(), kMaxPath));
  fmt::print("layers     {}: {}\n", c.num_layers, schedule_text(model.schedule()));
  fmt::print("width      hidden {}, {} heads of {}, vocabulary {}\n", c.hidden_size, c.num_heads,
             c.head_dim, c.vocab_size);
  fmt::print("experts    {}, {} per token, {} shared\n", c.num_experts, c.experts_per_token,
             c.shared_experts);
  if (const auto& drafter = model.weights().drafter; drafter && drafter->kind == DrafterKind::kMtp)
    fmt::print("drafter    one MTP block (--speculate mtp): window attention, {} experts\n",
               c.num_experts);
  else if (drafter)
    fmt::print("drafter    DSpark (--speculate dspark): {} stages, blocks of {}, sees layers {}\n",
               drafter->layers.size(), c.dspark.block_size, fmt::join(c.dspark.taps, ", "));
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
  fmt::print("ledger     by {}\n", quotable(ledger.tool));
  for (const auto& [part, total] : ledger.totals()) {
    fmt::print("  {:<15} {:>7} weights {:>10} {:>7.2f} bits  {}\n", part, total.weights,
               size_text(total.bytes), total.bits(),
               total.mean_sqnr_db ? fmt::format("{:.2f} dB", *total.mean_sqnr_db) : "exact");
  }
  if (!ledger.exceptions.empty())
    fmt::print("  {} weights kept their format, such as {}: {}\n", ledger.exceptions.size(),
               quotable(ledger.exceptions[0].name), quotable(ledger.exceptions[0].why));
  for (const nlohmann::json& eval : ledger.evals) {
    fmt::print("  eval {}\n", printable(dump(eval), kMaxEval));
  }
}

// Names of one kind: their number and the first.
void print_names(const char* what, const std::vector<std::string>& names, const char* why) {
  if (!names.empty())
    fmt::print("{:<10} {} {}, such as {}\n", what, names.size(), why, quotable(names.front()));
}

struct Verified {
  int64_t tensors = 0, bytes = 0, damaged = 0;
  std::string first;  // a sentence
};

// Reads every tensor of the checkpoint, also those that the model does not use.
Verified verify_numbers(const Checkpoint& checkpoint) {
  int64_t total = 0;
  for (const auto& [name, stored] : checkpoint.tensors()) total += stored.view.bytes();
  Progress progress("verifying", total, "B");
  Verified result;
  int64_t unreleased = 0;
  for (const auto& [name, stored] : checkpoint.tensors()) {
    const std::string damage = checkpoint.damage(name);
    if (!damage.empty() && result.damaged++ == 0) result.first = damage;
    ++result.tensors;
    result.bytes += stored.view.bytes();
    progress.update(result.bytes);
    constexpr int64_t kReleaseBytes = int64_t{1} << 30;
    unreleased += stored.view.bytes();
    if (unreleased < kReleaseBytes) continue;
    checkpoint.release_pages();
    unreleased = 0;
  }
  return result;
}

// With the drafter, if it can be loaded.
Model load_all(const std::string& folder) {
  std::shared_ptr<const ModelSpec> spec = ModelSpec::load(folder);
  const DrafterKind kind = drafter_kind(spec->config());
  const bool there =
      kind != DrafterKind::kNone && no_drafter(spec->checkpoint(), spec->config(), kind).empty();
  return Model(std::move(spec), {}, there ? kind : DrafterKind::kNone);
}

}  // namespace

void inspect_model(const std::string& name_or_folder, bool json, bool verify) {
  const Model model = load_all(find_model(name_or_folder));
  const WeightSummary weights = summarize(convert_list(stored_tensors(model.checkpoint()), {}));
  const std::string& folder = model.checkpoint().folder();
  const std::optional<Ledger> ledger = read_ledger(folder);
  const std::optional<int32_t> tokens = check_tokenizer(model);
  load_sampling_defaults(folder);  // throws what `run` would throw
  std::optional<Verified> verified;
  if (verify) verified = verify_numbers(model.checkpoint());
  if (json) {
    Json report = describe(model, weights, ledger);
    report["tokenizer"] = tokens ? Json(*tokens) : Json();
    if (verified) {
      report["verified"] = {{"tensors", verified->tensors},
                            {"bytes", verified->bytes},
                            {"damaged", verified->damaged}};
    }
    fmt::print("{}\n", dump(report));
  } else {
    print_architecture(model);
    fmt::print("tokenizer  {}\n", tokens ? fmt::format("{} tokens", *tokens)
                                         : "none: run, chat and serve need tokenizer.json");
    fmt::print("tensors    {} in {}\n", weights.total.tensors, size_text(weights.total.bytes));
    print_table("by stored dtype", weights.dtypes);
    print_table("by weight format (vectors and tables are other)", weights.formats);
    if (const std::string books = to_text(codebooks_of(model)); !books.empty())
      fmt::print("codebooks  {}\n", books);
    print_table("by part", weights.parts);
    if (ledger) print_ledger(*ledger);
    print_names("skipped", model.weights().skipped, "drafter tensors, which are not used");
    print_names("unused", model.weights().unused, "tensors that are not needed");
    print_names("unknown", model.config().unknown, "config keys");
    if (verified) {
      fmt::print("verified   {} tensors, {}: {}\n", verified->tensors, size_text(verified->bytes),
                 verified->damaged == 0 ? "every value is a number"
                                        : fmt::format("{} are damaged", verified->damaged));
    }
  }
  if (verified && verified->damaged > 0)
    fail(ErrorCode::kBadInput, "{}{}", verified->first,
         verified->damaged > 1 ? fmt::format(", and {} more tensors", verified->damaged - 1) : "");
}

}  // namespace dsv4::apps
