#include "apps/expert_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/expert_store.h"
#include "dsv4/model/expert_counts.h"
#include "dsv4/model/model.h"

namespace dsv4::apps {
namespace {

// "60G", "23.5GiB", "512m": K, M, G and T are powers of 1024; -1: none of these.
int64_t parse_size(std::string_view text) {
  double number = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number > 0)) return -1;
  std::string unit(at, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
  constexpr std::string_view kUnits = "KMGT";
  const size_t power = unit.size() == 1 ? kUnits.find(unit) : kUnits.npos;
  if (power == kUnits.npos) return -1;
  const double bytes = std::ldexp(number, 10 * static_cast<int>(power + 1));
  return bytes < 0x1p60 ? static_cast<int64_t>(bytes) : -1;
}

int64_t size_option(const char* option, const std::string& text) {
  const int64_t bytes = parse_size(text);
  if (bytes < 0)
    throw CLI::ValidationError(
        option, fmt::format("'{}': want a size such as 60G or 512M", quotable(text)));
  return bytes;
}

void add_size(CLI::App& command, const char* name, std::optional<int64_t>& bytes,
              const std::string& what) {
  command
      .add_option_function<std::string>(
          name, [name, &bytes](const std::string& text) { bytes = size_option(name, text); }, what)
      ->option_text("SIZE");
}

}  // namespace

std::optional<int64_t> ExpertOptions::gpu_bytes() const {
  if (experts_memory == "auto") return std::nullopt;
  return parse_size(experts_memory);
}

void add_expert_sizes(CLI::App& command, ExpertOptions& options, const std::string& what) {
  CLI::Option* experts = command
                             .add_option_function<std::string>(
                                 "--experts-memory",
                                 [&options](const std::string& text) {
                                   if (text != "auto") size_option("--experts-memory", text);
                                   options.experts_memory = text;
                                 },
                                 what)
                             ->option_text("SIZE|auto");
  add_size(command, "--gpu-memory", options.gpu, "memory that a GPU gives, if less than it has");
  add_size(command, "--host-memory", options.host_memory,
           "host memory for experts, with --experts-memory; default: all that can be had");
  command.get_option("--host-memory")->needs(experts);
}

void add_expert_options(CLI::App& command, ExpertOptions& options) {
  add_expert_sizes(command, options,
                   "leave the experts that the GPU does not hold in host memory: GPU memory for "
                   "experts, or all that there is room for (not run on a GPU yet)");
  CLI::Option* experts = command.get_option("--experts-memory");
  command.get_option("--gpu-memory")->needs(experts);
  command
      .add_option("--experts-counts", options.counts,
                  "uses of each expert, of which the most used begin in GPU memory; a file of "
                  "tools/expert_trace.py")
      ->option_text("FILE")
      ->needs(experts);
}

void check_expert_options(const ExpertOptions& options, const std::string& device) {
  if (!options.wanted()) return;
  if (num_ranks(device) > 1)
    refuse_expert_memory("it is for one GPU, not for ranks: leave it out, or give one device");
  if (is_cpu(device))
    refuse_expert_memory(
        "on the CPU all experts are in host memory: leave it out, or run on one GPU (--device "
        "cuda)");
}

std::optional<ExpertMemory> expert_memory(const ExpertOptions& options, const ModelConfig& config,
                                          const CacheLimits& limits, int64_t other_host_bytes) {
  if (!options.wanted()) return std::nullopt;
  ExpertMemory memory{.gpu_bytes = options.gpu_bytes(),
                      .cap_bytes = options.gpu,
                      .host_bytes = options.host_memory,
                      .other_host_bytes = other_host_bytes,
                      .limits = limits};
  constexpr size_t kMostBytes = size_t{16} << 20;
  if (!options.counts.empty())
    memory.order =
        parse_expert_counts(read_text_file(options.counts, kMostBytes), options.counts, config);
  return memory;
}

namespace {

// The average of all layers, which have one size in the released models.
int64_t expert_bytes(const ExpertPlaces& places) {
  return places.host_bytes() / std::max<int64_t>(places.homes(), 1);
}

double hit_rate(const ExpertCounts& counts) {
  const int64_t chosen = counts.hits + counts.moves + counts.read_at_home;
  return chosen == 0 ? 0 : static_cast<double>(counts.hits) / static_cast<double>(chosen);
}

}  // namespace

ExpertCounts expert_counts(const Model& model) {
  const ExpertStore* const store = model.expert_store();
  return store == nullptr ? ExpertCounts{} : store->read_counts();
}

nlohmann::ordered_json expert_report(const Model& model, const ExpertCounts& before) {
  const ExpertStore* const store = model.expert_store();
  if (store == nullptr) return nullptr;
  const ExpertPlaces& places = store->places();
  const ExpertCounts now = store->read_counts();
  const ExpertCounts counts{.hits = now.hits - before.hits,
                            .moves = now.moves - before.moves,
                            .read_at_home = now.read_at_home - before.read_at_home,
                            .impossible = now.impossible - before.impossible};
  return {{"resident", places.resident()},
          {"fixed", places.all() - places.homes()},
          {"transient", places.transient()},
          {"experts", places.all()},
          {"hits", counts.hits},
          {"fetched", counts.moves},
          {"read_at_home", counts.read_at_home},
          {"bad_ids", counts.impossible},
          {"hit_rate", hit_rate(counts)},
          {"link_bytes", (counts.moves + counts.read_at_home) * expert_bytes(places)}};
}

std::string expert_text(const Model& model) {
  const ExpertStore* const store = model.expert_store();
  if (store == nullptr) return {};
  const ExpertCounts counts = store->read_counts();
  return fmt::format(
      "{:.1f} % of chosen experts in GPU memory, {} over the link while decoding",
      100 * hit_rate(counts),
      size_text((counts.moves + counts.read_at_home) * expert_bytes(store->places())));
}

}  // namespace dsv4::apps
