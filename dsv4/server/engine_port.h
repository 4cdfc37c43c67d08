// What the server uses of an engine. ModelEngine is the real one; ScriptEngine answers from a file,
// for tests of what the bundled model would rarely write.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dsv4/engine/engine.h"

namespace dsv4 {

class Tokenizer;

struct EngineLimits {
  int32_t vocab_size = 0;
  int64_t context = 0;  // tokens of one sequence: prompt and answer
  int max_sequences = 1;
  std::vector<int32_t> eos;
};

// Everything is called by one thread.
class EnginePort {
 public:
  virtual ~EnginePort() = default;
  virtual const EngineLimits& limits() const = 0;
  // As Engine's functions of the same names.
  virtual RequestId submit(std::span<const int32_t> prompt, const GenerateParams& params,
                           TokenSink& sink) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual bool step() = 0;
  virtual EngineStats stats() const = 0;
  virtual MemoryUse device_memory() const { return {}; }
  virtual ExpertStats expert_stats() const { return {}; }
  virtual void check_ranks() {}
  virtual std::vector<RankStats> rank_stats() const { return {}; }
  virtual void drop_prefixes() {}
};

std::unique_ptr<EnginePort> model_engine(std::shared_ptr<const Model> model,
                                         const EngineOptions& options);

// One JSON object per line, tried in order for each request:
//
//   {"match": "weather", "output": "R</think>C", "finish": "stop"|"length", "step_ms": 0,
//    "repeat": 1, "fault_after": 3}
//
// The first line whose `match` occurs in the prompt's text (absent: always) answers: `output` with
// its markers by their spelling, or `ids`, `repeat` times. One token leaves per step and request.
// `step_ms`: how long such a step takes. `fault_after`: the step after so many tokens throws.
std::unique_ptr<EnginePort> script_engine(const std::string& text, const std::string& file,
                                          std::shared_ptr<const Tokenizer> tokenizer,
                                          const EngineLimits& limits);

}  // namespace dsv4
