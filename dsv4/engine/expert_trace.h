// Writes down which experts every token chose: what tools/expert_trace.py replays to find how many
// of them a GPU should hold (docs/experts-in-host-memory.md). Also counts their uses.
//
// The file, version 1, little-endian:
//
//   "dsv4xtrc"  U32 version, layers, experts, k
//   then for each step of the network
//     U32 tokens
//     I64 [tokens]             the sequence of each token; a number is never used again
//     U16 [layers, tokens, k]  the choices
//
// A step that fails half-way is not in it. Tokens that are computed again, after a preemption or
// as drafts that were not kept, are in it as often as they were computed. The experts of a
// drafter's own block are not in it.

#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/model/config.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

// For steps on the host: the fused kernels of a device choose experts where no observer sees it.
class ExpertTrace final : public Observer {
 public:
  // path: empty, and only uses() are counted. Throws kBadInput for a file that exists, kIo when it
  // cannot be made.
  ExpertTrace(const std::string& path, const ModelConfig& config);

  // sequences: of each token of the step whose ops are observed next
  void begin_step(std::vector<int64_t> sequences);
  void observe(const OpCall& call) override;
  // Call after the last step. Throws kIo when something could not be written; steps themselves go
  // on without it.
  void finish();
  // [layer]: choices of each expert, by all tokens of the steps that would be in the file
  const std::vector<std::vector<int64_t>>& uses() const { return uses_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write(const void* data, size_t bytes);
  void write_step();
  void count_step();

  const std::string path_;
  const int64_t layers_;
  std::unique_ptr<std::FILE, Close> file_;
  int error_ = 0;                   // errno of the first failure
  std::vector<int64_t> sequences_;  // of the tokens of this step
  std::vector<uint16_t> choices_;   // of its layers so far
  int64_t seen_ = 0;                // so many
  std::vector<std::vector<int64_t>> uses_;
};

}  // namespace dsv4
