#include "apps/expert_options.h"

#include <CLI/CLI.hpp>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/size_text.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/model/expert_counts.h"

namespace dsv4::apps {
namespace {

int64_t size_option(const char* option, const std::string& text) {
  const std::optional<int64_t> bytes = parse_size(text);
  if (!bytes)
    throw CLI::ValidationError(
        option, fmt::format("'{}': want a size such as 60G or 512M", quotable(text)));
  return *bytes;
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
                   "experts, or all that there is room for");
  CLI::Option* experts = command.get_option("--experts-memory");
  command.get_option("--gpu-memory")->needs(experts);
  command
      .add_option("--experts-counts", options.counts,
                  "uses of each expert, of which the most used begin in GPU memory; a file of "
                  "tools/expert_trace.py")
      ->option_text("FILE")
      ->needs(experts);
}

void check_expert_options(const ExpertOptions& options, const std::string& device,
                          ExpertsPlacement placement) {
  if (!options.wanted()) return;
  if (placement == ExpertsPlacement::kWhole)
    refuse_expert_memory("--experts-placement whole is for ranks: leave one of the two out");
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

}  // namespace dsv4::apps
