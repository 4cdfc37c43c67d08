// What commands write down about the experts that tokens choose: a trace of every choice
// (--experts-trace), and the uses of each expert (--experts-counts-out), which --experts-counts
// reads in a later run (docs/experts-in-host-memory.md).
//
// On the CPU an observer sees the choices of every token. On a GPU only steps that fetch experts
// count them, so uses are known with --experts-memory alone, and are those of decode steps.

#pragma once

#include <memory>
#include <string>

#include "dsv4/base/atomic_file.h"
#include "dsv4/engine/expert_trace.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4 {
class ModelShard;
using Model = ModelShard;
}  // namespace dsv4

namespace dsv4::apps {

struct ExpertRecordOptions {
  std::string trace, counts;  // files; empty: none

  bool wanted() const { return !trace.empty() || !counts.empty(); }
};

// Both options. Neither goes with --check-numbers, where the command has that.
void add_expert_record(CLI::App& command, ExpertRecordOptions& options);

// A file for uses of experts, which appears when they are written. Null: none is wanted. Throws
// when it is there already, as none is replaced, or cannot be made.
std::unique_ptr<AtomicFile> open_counts_file(const std::string& file);
// Throws kUnsupported where steps on a GPU count nothing: all experts have their place there.
void require_counted_steps(const Model& model);
// Writes the decode steps that chose each expert of a model that has some in host memory.
void write_fetched_counts(const Model& model, AtomicFile& file);

class ExpertRecord {
 public:
  // Before the model is placed. fetches: --experts-memory is given. Throws kUnsupported for what
  // this device does not count, kBadInput for files that exist.
  ExpertRecord(const ExpertRecordOptions& options, const std::string& device, bool fetches,
               const ModelConfig& config);

  // For the engine; null: its steps need no observer.
  const std::shared_ptr<ExpertTrace>& trace() const { return trace_; }
  // Call it when the model is placed. Throws kUnsupported when nothing of it is counted.
  void begin(const Model& model) const;
  // Call it after the last step: completes the files.
  void finish(const Model& model) const;

 private:
  std::unique_ptr<AtomicFile> counts_;
  std::shared_ptr<ExpertTrace> trace_;
};

}  // namespace dsv4::apps
