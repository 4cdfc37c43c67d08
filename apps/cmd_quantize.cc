// dsv4 quantize MODEL -o OUT: converts a checkpoint to low-bit formats, by flags or a recipe.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/generation.h"
#include "apps/threads.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/size_text.h"
#include "dsv4/convert/quantize.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/model/model.h"
#include "dsv4/plan/weight_summary.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string model, out, experts, dense, recipe, imatrix, scales = "search", device = "cpu";
  double shard_gib = 4;
  bool restart = false, json = false;
};

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxShown = 500;  // bytes of a name or a reason

Recipe recipe_of(const Options& options) {
  Recipe recipe = read_recipe(options.experts, options.dense, options.recipe);
  if (recipe.rules.empty())
    fail(ErrorCode::kBadInput, "nothing to do: give --experts k3, --dense k4 or --recipe FILE");
  return recipe;
}

// Draws the bar; its total is known from the first call.
class Bar {
 public:
  void update(const QuantizeProgress& now) {
    const std::chrono::duration<double> spent = Clock::now() - begin_;
    if (bar_ == nullptr) bar_ = std::make_unique<Progress>("quantizing", now.total_bytes, "B");
    bar_->skip(now.bytes - now.processed_bytes);
    weights_ = now.weights;
    processed_bytes_ = now.processed_bytes;
    bar_->update(now.bytes,
                 fmt::format("{}/{} tensors  {}/{}  {:.1f} M weights/s  {:.2f} GB/s", now.tensors,
                             now.total_tensors, size_text(now.bytes), size_text(now.total_bytes),
                             static_cast<double>(now.weights) / spent.count() / 1e6,
                             static_cast<double>(now.processed_bytes) / spent.count() / 1e9));
  }
  void finish() {
    spent_ = std::chrono::duration<double>(Clock::now() - begin_).count();
    bar_.reset();
  }
  double seconds() const { return spent_; }
  int64_t weights() const { return weights_; }
  int64_t processed_bytes() const { return processed_bytes_; }

 private:
  Clock::time_point begin_ = Clock::now();
  std::unique_ptr<Progress> bar_;
  double spent_ = 0;
  int64_t weights_ = 0, processed_bytes_ = 0;
};

// Counts the codebooks of converted weights; those that were k-bit before have none in the ledger.
CodebookCounts codebooks_of(const Ledger& ledger) {
  CodebookCounts counts;
  for (const LedgerWeight& weight : ledger.weights) {
    if (weight.format.starts_with('k') && weight.format.find('-') != std::string::npos)
      ++counts[weight.format];
  }
  return counts;
}

void print_totals_json(const Options& options, const QuantizeResult& result, const Bar& bar) {
  Json totals = Json::object();
  for (const auto& [part, total] : result.ledger.totals()) {
    totals[part] = {{"weights", total.weights},
                    {"bytes", total.bytes},
                    {"bits", total.bits()},
                    {"exact", total.exact},
                    {"mean_sqnr_db", total.mean_sqnr_db ? Json(*total.mean_sqnr_db) : Json()}};
  }
  const Json report = {{"out", options.out},
                       {"source_bytes", result.source_bytes},
                       {"bytes", result.bytes},
                       {"shards", result.shards},
                       {"resumed_shards", result.resumed_shards},
                       {"largest_tensor_bytes", result.largest_tensor},
                       {"device", options.device},
                       {"seconds", bar.seconds()},
                       {"converted_weights", bar.weights()},
                       {"read_bytes", bar.processed_bytes()},
                       {"totals", totals},
                       {"codebooks", codebooks_of(result.ledger)},
                       {"exceptions", result.ledger.exceptions.size()},
                       {"imatrix_used", result.imatrix_used},
                       {"imatrix_missing", result.imatrix_missing},
                       {"imatrix_unknown", result.imatrix_unknown.size()},
                       {"idle_rules", result.unused_rules},
                       {"side_files", result.side_files}};
  fmt::print("{}\n", report.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Summarizes several entries: their number, and the first one.
void print_first(size_t count, const std::string& what, const std::string& first) {
  if (count > 0) fmt::print("{} {}, such as {}\n", count, what, printable(first, kMaxShown));
}

void print_summary(const Options& options, const QuantizeResult& result, const Bar& bar) {
  fmt::print("{}: {} from {} in {:.0f} s", options.out, size_text(result.bytes),
             size_text(result.source_bytes), bar.seconds());
  if (result.resumed_shards > 0)
    fmt::print(", {} of {} files already existed", result.resumed_shards, result.shards);
  fmt::print("\n");
  for (const auto& [part, total] : result.ledger.totals()) {
    fmt::print("  {:<15} {:>6} weights {:>10} {:>6.2f} bits  {}\n", part, total.weights,
               size_text(total.bytes), total.bits(),
               total.mean_sqnr_db ? fmt::format("{:.2f} dB", *total.mean_sqnr_db) : "exact");
  }
  if (const std::string books = to_text(codebooks_of(result.ledger)); !books.empty())
    fmt::print("codebooks: {}\n", printable(books, kMaxShown));
  const auto& exceptions = result.ledger.exceptions;
  if (!exceptions.empty())
    print_first(exceptions.size(), "weights kept their format despite the recipe",
                fmt::format("{}: {}", exceptions[0].name, exceptions[0].why));
  if (!options.imatrix.empty())
    fmt::print("imatrix: used for {} weights, {} are not in it\n", result.imatrix_used,
               result.imatrix_missing);
  if (!result.imatrix_unknown.empty())
    print_first(result.imatrix_unknown.size(), "entries of the imatrix match no weight",
                result.imatrix_unknown[0]);
  for (const std::string& rule : result.unused_rules)
    fmt::print("rule {}: matches no weight\n", printable(rule, kMaxShown));
  std::string files;
  for (const std::string& file : result.side_files)
    files += (files.empty() ? "" : ", ") + quotable(file);
  if (!files.empty()) fmt::print("copied: {}\n", files);
}

// What `run` would refuse is refused before the work begins: it may take an hour.
void check_source(const std::string& folder) {
  const Model model = Model::load(folder);
  if (!check_tokenizer(model)) {
    fmt::print(stderr,
               "dsv4: note: {} has no tokenizer.json: the converted model will need one for run, "
               "chat and serve\n",
               printable(folder, kMaxShown));
  }
  load_sampling_defaults(folder);
  bool kbit = false;
  for (const auto& [name, stored] : model.checkpoint().tensors())
    kbit |= name.ends_with(".codebook");
  if (kbit)
    fmt::print(stderr,
               "dsv4: note: {} holds weights of 2 to 5 bits already: errors will be measured "
               "against these, and quantizing twice loses more than once\n",
               printable(folder, kMaxShown));
}

void run_quantize(Options options) {
  if (std::filesystem::path(options.out).filename() == "demo")
    fail(ErrorCode::kBadInput, "-o {}: demo names the bundled model; choose another folder",
         options.out);
  if (num_ranks(options.device) > 1)
    fail(ErrorCode::kBadInput, "--device {}: a conversion takes one device", options.device);
  if (options.device == "auto") options.device = default_device();
  const std::shared_ptr<Device> device = open_device(options.device);
  const std::string source = find_model(options.model);
  const Recipe recipe = recipe_of(options);
  check_source(source);
  const QuantizeOptions job = {
      .source = source,
      .out = options.out,
      .recipe = recipe,
      .imatrix = options.imatrix,
      .scales = options.scales == "search" ? ScaleChoice::kSearched : ScaleChoice::kReference,
      .shard_bytes = static_cast<int64_t>(options.shard_gib * (int64_t{1} << 30)),
      .restart = options.restart,
      .device = device.get()};
  Bar bar;
  const QuantizeResult result =
      quantize(job, [&](const QuantizeProgress& now) { bar.update(now); });
  bar.finish();
  options.json ? print_totals_json(options, result, bar) : print_summary(options, result, bar);
}

}  // namespace

void add_quantize(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("quantize", "Convert a checkpoint to low-bit formats");
  command->footer(
      "A recipe has lines PATTERN [LAYERS] FORMAT; the last match wins; see docs/quantize.md.\n"
      "To resume an interrupted conversion, repeat the same command.\n\n"
      "Example: dsv4 quantize DeepSeek-V4-Flash -o flash-k3 --experts k3\n"
      "         dsv4 quantize demo -o demo-k2 --experts k2 --dense k4");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->model, "model folder, ORG/NAME, or demo")->required();
  command->add_option("-o,--out", options->out, "folder to create")->required();
  command->add_option("--experts", options->experts, "format of the routed experts")
      ->option_text("k2..k5[-nf|-bnf|-e4m3|-@FILE]|mxfp4|nvfp4|fp8|bf16|keep");
  command->add_option("--dense", options->dense,
                      "format of attention projections, indexer and shared experts");
  command->add_option("--recipe", options->recipe,
                      "file of rules, applied after those of the flags");
  command->add_option("--imatrix", options->imatrix,
                      "importance of columns: a file of eval imatrix or of llama.cpp (GGUF, .dat)");
  command->add_option("--scales", options->scales, "search: least error; reference: absmax")
      ->check(CLI::IsMember({"search", "reference"}))
      ->option_text("search|reference")
      ->capture_default_str();
  command->add_option("--shard-size", options->shard_gib, "approximate GiB per file")
      ->check(number_in(1e-6, 1e6))
      ->capture_default_str();
  command->add_flag("--restart", options->restart, "discard an unfinished conversion");
  command
      ->add_option(
          "--device", options->device,
          "what converts to k-bit weights and FP4; auto: a GPU where there is one. The files are "
          "the same")
      ->option_text("auto|cpu|cuda[:N] (cpu)");
  add_threads(*command);
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &action] { action = [options] { run_quantize(*options); }; });
}

}  // namespace dsv4::apps
