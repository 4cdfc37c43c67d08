// dsv4 bench cache: what the prefix cache, its tiers and the scheduler cost on a model
// (cache_scenarios.h).

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/bench_model.h"
#include "apps/cache_scenarios.h"
#include "apps/commands.h"
#include "apps/common.h"
#include "apps/json_report.h"
#include "dsv4/base/error.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

struct CacheBenchOptions : BenchOptions {
  std::vector<std::string> scenarios = {"agent", "memory", "arrival"};
  ScenarioOptions scenario;
  double ram_gb = 4;
};

// A folder of this program, removed with what is in it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent) {
    std::string name = (std::filesystem::path(parent) / "dsv4-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      fail(ErrorCode::kBadInput, "--disk-cache {}: no folder can be made there", parent);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

CacheLimits limits_of(const EngineOptions& engine) {
  return {.max_tokens = engine.max_tokens,
          .max_sequences = engine.max_sequences,
          .max_batch_tokens = engine.max_batch_tokens,
          .cache_tokens = engine.cache_tokens,
          .checkpoints = engine.prefix_checkpoints};
}

void print_text(const Json& report) {
  for (const Json& result : report["results"]) {
    const auto scenario = result["scenario"].get<std::string>();
    if (scenario == "agent") {
      for (const Json& tier : result["tiers"]) {
        if (tier.contains("ratio_p50")) {
          fmt::print("agent, {:<7} {:5.2f} x the time of the new tokens (p90 {:.2f}), {:+.1f} ms\n",
                     tier["tier"].get<std::string>(), tier["ratio_p50"].get<double>(),
                     tier["ratio_p90"].get<double>(), tier["extra_ms_p50"].get<double>());
        } else {
          fmt::print("agent, restart {:+.1f} ms, {} tokens recomputed\n",
                     tier["extra_ms"].get<double>(), tier["recomputed"].get<int64_t>());
        }
      }
    } else if (scenario == "memory") {
      fmt::print("memory: {:.0f} tokens/s with half of the cache, {:.2f} of all of it\n",
                 result["half"]["tokens_per_second"].get<double>(), result["ratio"].get<double>());
    } else {
      fmt::print(
          "arrival: {:.1f} ms between tokens (p99), the prompt at {:.2f} of its rate alone\n",
          result["itl_ms"]["p99"].get<double>(), result["rate_ratio"].get<double>());
    }
  }
}

void bench_cache(const CacheBenchOptions& options) {
  const ScratchFolder folder(options.scenario.folder);
  ScenarioOptions scenario = options.scenario;
  scenario.folder = folder.path();
  scenario.ram_bytes = static_cast<int64_t>(options.ram_gb * 1e9);
  scenario.seed = options.seed;
  scenario.identity = "bench " + options.model + options.synthetic + options.experts;
  scenario.context = {.numerics = options.numerics,
                      .need_batch_invariant = options.deterministic,
                      .choices = options.choices};
  BenchModel bench(options,
                   {limits_of(agent_engine(scenario)), limits_of(memory_engine(scenario, false)),
                    limits_of(arrival_engine(scenario))});
  Json report = bench.header();
  report["results"] = Json::array();
  for (const std::string& name : options.scenarios) {
    report["results"].push_back(name == "agent"    ? agent_scenario(bench.model(), scenario)
                                : name == "memory" ? memory_scenario(bench.model(), scenario)
                                                   : arrival_scenario(bench.model(), scenario));
  }
  options.json ? fmt::print("{}\n", dump(report)) : print_text(report);
}

}  // namespace

void add_bench_cache(CLI::App& bench_app, Action& action) {
  CLI::App* command = bench_app.add_subcommand(
      "cache", "Prefix cache, tiers and scheduler: agent turns, tight memory, a long prompt");
  auto options = std::make_shared<CacheBenchOptions>();
  command->footer(
      "Example: dsv4 bench cache --synthetic flash --experts k3-e4m3 --device cuda --json\n"
      "agent: time to the first token of each turn, by the tier that holds the text before it.\n"
      "memory: tokens per second when conversations exceed the cache twice.\n"
      "arrival: times between tokens of clients while a long prompt is computed.");
  add_bench_options(*command, *options);
  ScenarioOptions& scenario = options->scenario;
  std::error_code none;  // TMPDIR may be wrong, and this runs for every command
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(none);
  scenario.folder = none ? "/tmp" : temporary.string();
  command->add_option("--scenario", options->scenarios, "which, a list")
      ->delimiter(',')
      ->check(CLI::IsMember({"agent", "memory", "arrival"}))
      ->option_text("agent,memory,arrival");
  const auto count = [&](const char* name, int64_t& value, const char* what) {
    command->add_option(name, value, what)->check(integer_in(1, 1 << 24))->capture_default_str();
  };
  count("--head", scenario.head, "agent, memory: tokens before the first turn");
  count("--turns", scenario.turns, "agent: turns");
  count("--new", scenario.new_tokens, "agent, memory: new tokens of a turn");
  count("--answer", scenario.answer, "agent, memory: tokens of an answer");
  count("--conversations", scenario.conversations, "memory: conversations");
  count("--at-once", scenario.at_once, "memory: of them, how many wait for an answer at a time");
  count("--memory-turns", scenario.memory_turns, "memory: turns of each");
  count("--clients", scenario.clients, "arrival: clients");
  count("--client-prompt", scenario.client_prompt, "arrival: tokens of their prompts");
  count("--client-answer", scenario.client_answer, "arrival: tokens of their answers");
  count("--long-prompt", scenario.long_prompt, "arrival: tokens of the long prompt");
  count("--max-batch-tokens", scenario.max_batch_tokens, "tokens of one step");
  count("--max-itl-ms", scenario.max_itl_ms, "arrival: the option of `dsv4 serve`");
  command->add_option("--ram-cache", options->ram_gb, "GB of host memory for checkpoints")
      ->check(number_in(0.001, 1e6))
      ->capture_default_str();
  command->add_option("--disk-cache", scenario.folder,
                      "folder in which a temporary one of the disk tier is made");
  command->callback([options, &action] { action = [options] { bench_cache(*options); }; });
}

}  // namespace dsv4::apps
