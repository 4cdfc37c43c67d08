// Options of commands that can leave experts in host memory (docs/experts-in-host-memory.md).

#pragma once

#include <optional>
#include <string>

#include "dsv4/comm/shard_id.h"
#include "dsv4/engine/expert_memory.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4 {
struct ModelConfig;
}  // namespace dsv4

namespace dsv4::apps {

struct ExpertOptions {
  std::string experts_memory;               // "", "auto" or a size
  std::optional<int64_t> gpu, host_memory;  // bytes; none: the machine's
  std::string counts;                       // file

  bool wanted() const { return !experts_memory.empty(); }
  std::optional<int64_t> gpu_bytes() const;  // for experts; none: auto
};

// --experts-memory, --gpu-memory and --host-memory. what: describes the first of them
void add_expert_sizes(CLI::App& command, ExpertOptions& options, const std::string& what);
// As commands have them that run a model: also --experts-counts, and all need --experts-memory.
void add_expert_options(CLI::App& command, ExpertOptions& options);

// Throws kUnsupported, in one line, where experts are in host memory anyhow, or ranks share them.
// Call it before a model is read.
void check_expert_options(const ExpertOptions& options, const std::string& device,
                          ExpertsPlacement placement);

// None: the option is not given. limits: of the engine; other_host_bytes: that it takes besides
std::optional<ExpertMemory> expert_memory(const ExpertOptions& options, const ModelConfig& config,
                                          const CacheLimits& limits, int64_t other_host_bytes = 0);

}  // namespace dsv4::apps
