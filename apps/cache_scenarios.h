// Loads on an engine that show what the prefix cache, the scheduler and their tiers cost
// (docs/spec/serving.md 10.3). `dsv4 bench cache` runs them.
//
//   agent     one conversation of many turns: the time to the first token of each turn when the
//             text before it comes from the engine's cache, from host memory, from the disk, and
//             after a restart, compared with a sequence that was never given up
//   memory    conversations whose caches exceed the engine's: tokens per second, compared with an
//             engine that holds all of them
//   arrival   clients that decode when a long prompt arrives: their times between tokens and to the
//             first token of their next requests, and how fast the prompt is computed beside them

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dsv4/engine/engine.h"

namespace dsv4::apps {

struct ScenarioOptions {
  Context context;
  int64_t head = 8000, turns = 60, new_tokens = 1000, answer = 32;
  int64_t conversations = 8, at_once = 8, memory_turns = 6;
  int64_t clients = 32, client_prompt = 2048, client_answer = 256, long_prompt = 100'000;
  int64_t max_batch_tokens = 2048, max_itl_ms = 100;
  int64_t ram_bytes = 0;
  std::string folder;    // of the disk tier
  std::string identity;  // of the model
  uint64_t seed = 1;
};

// The engines of the scenarios. A benchmark that loads weights checks first that these fit.
EngineOptions agent_engine(const ScenarioOptions& options);
EngineOptions memory_engine(const ScenarioOptions& options, bool limited);
EngineOptions arrival_engine(const ScenarioOptions& options);

nlohmann::ordered_json agent_scenario(const Model& model, const ScenarioOptions& options);
nlohmann::ordered_json memory_scenario(const Model& model, const ScenarioOptions& options);
nlohmann::ordered_json arrival_scenario(const Model& model, const ScenarioOptions& options);

}  // namespace dsv4::apps
