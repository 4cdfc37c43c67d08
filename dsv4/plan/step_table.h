// Which implementation takes each call of a forward step, and why those that its table prefers do
// not: read from a dry run of Model::forward() (model/dry_run.h), so the table is what a real step
// with these extents does.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/ops/op.h"
#include "dsv4/plan/synthetic.h"

namespace dsv4 {

// Calls of one op that chose the same implementation for the same reasons.
struct StepCalls {
  int depth = 0;  // 0: called by the model; 1: by an implementation `parts` of depth 0; ..
  std::string_view op, impl;
  int64_t calls = 0;
  std::vector<Refusal> refusals;  // in the order of the table
};

struct StepTable {
  int64_t tokens = 0;
  bool decode = false;  // one token of each of `tokens` sequences; else one sequence's chunk
  bool draft = false;   // guesses of the drafter for so many sequences
  std::vector<StepCalls> calls;  // in the order of their first call, `parts` before their calls
};

// Up to this many tokens a step is a decode step, above it a chunk of a prompt.
inline constexpr int64_t kMostDecodeTokens = 64;

struct StepTableRequest {
  std::string release;       // "flash" or "pro"
  SyntheticFormats formats;  // what its weights are stored as
  std::string gpu;           // imagined_gpu(); empty: implementations of the host
  std::vector<int64_t> tokens;
  int64_t context = 4096;  // tokens of a sequence, at least those of the step
  Numerics numerics = Numerics::kOfficial;
  bool batch_invariant = false;              // --deterministic
  std::vector<ImplChoice> choices{};         // --impl
  DrafterKind drafter = DrafterKind::kNone;  // for which steps enter their tokens
};

// One table for each number of tokens; with a drafter, a second one of its guesses for each number
// of tokens of a decode step, on a GPU with the head that --draft-head auto takes. Throws
// kUnsupported for a GPU in a build without CUDA.
std::vector<StepTable> step_tables(const StepTableRequest& request);

}  // namespace dsv4
