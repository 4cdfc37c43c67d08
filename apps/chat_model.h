// Loading a model for chat: what `dsv4 serve` and `dsv4 chat` share.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/expert_options.h"
#include "apps/expert_record.h"
#include "apps/speculate_options.h"
#include "apps/synthetic_model.h"
#include "dsv4/cache/block_events.h"
#include "dsv4/server/engine_port.h"
#include "dsv4/server/served_model.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct ChatModelOptions {
  std::string model, device = "auto", engine;
  ExpertsPlacement placement = ExpertsPlacement::kSliced;
  std::string effort_profile = "auto", thinking = "auto";
  std::optional<int64_t> context, cache_tokens, max_batch_tokens;
  int max_batch = 1;
  int prefix_checkpoints = 16;
  int64_t checkpoint_interval = 2048;
  int64_t max_itl_ms = 100;
  int64_t max_scored_tokens = 0;  // of prompts, per step
  double ram_cache_gb = 0, disk_cache_gb = 64;
  std::string disk_cache;
  ExpertRecordOptions record;
  ExpertOptions experts;
  std::function<void(const std::string& error)> on_disk_state;  // UnitStoreOptions
  BlockEvents block_events;                                     // EngineOptions
  SpeculateOptions speculate;
  SyntheticOptions random;  // in place of a model folder; the demo's texts stand for its own
  bool deterministic = false;
  std::vector<ImplChoice> choices;
  Numerics numerics = Numerics::kOfficial;
};

struct ChatModel {
  std::unique_ptr<EnginePort> engine;
  std::shared_ptr<ServedModel> text;  // its limits are the engine's
  // Completes the files of ExpertRecordOptions, when the engine is gone; empty: there are none.
  std::function<void()> finish_record;
};

void add_chat_model_options(CLI::App& command, ChatModelOptions& options);
// The folder whose tokenizer and texts the model has. Throws where there is no such model.
std::string folder_of(const ChatModelOptions& options);
ChatModel load_chat_model(const ChatModelOptions& options);
// Where this process is a rank other than 0, does what rank 0 sends and ends by ExitStatus; returns
// in others.
void follow_if_rank(const ChatModelOptions& options);

}  // namespace dsv4::apps
