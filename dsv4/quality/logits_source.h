// A source of logits: a model that is run, or a file made earlier. A measurement requests pieces in
// order and never holds the logits of more than one.

#pragma once

#include <optional>
#include <vector>

#include "dsv4/engine/executor.h"
#include "dsv4/quality/windows.h"

namespace dsv4 {

class LogitsSource {
 public:
  virtual ~LogitsSource() = default;
  virtual int64_t vocab() const = 0;
  // Logits that predict piece.targets: [n, V] f32, valid until the next call; do not read them when
  // the piece has no targets. Call in the order of for_each_piece.
  virtual ConstTensorView next(const Piece& piece) = 0;
};

class ModelLogits : public LogitsSource {
 public:
  // Throws kBadInput when the model has fewer positions than `options.context`.
  ModelLogits(const Model& model, const Context& context, const WindowOptions& options,
              int64_t chunk);
  int64_t vocab() const override { return vocab_; }
  ConstTensorView next(const Piece& piece) override;
  void trace_experts(ExpertTrace* trace);  // Executor::trace_experts

 private:
  const Model& model_;
  const Context context_;
  int64_t vocab_;
  Executor executor_;
  std::optional<SeqId> seq_;
  std::vector<int32_t> read_;  // tokens of the sequence, for errors
};

}  // namespace dsv4
