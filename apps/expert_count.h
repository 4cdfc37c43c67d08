// Counts the experts that a step reads, which no formula knows when tokens do not choose at random.

#pragma once

#include <cstdint>

#include "dsv4/ops/op.h"
#include "dsv4/tensor/memory.h"

namespace dsv4::apps {

class ExpertCount : public Observer {
 public:
  // memory: where the steps' tensors are
  explicit ExpertCount(Memory& memory) : memory_(memory) {}

  // Runs the call; waits for the ids of routed experts.
  void observe(const OpCall& call) override;

  int64_t layers() const { return layers_; }  // with routed experts
  // Read by a layer, on average; 0 without such layers.
  double distinct() const;
  // Bytes of all these experts, less what is expected of random choices (expected_cost).
  double unexpected_bytes() const { return unexpected_bytes_; }

 private:
  Memory& memory_;
  int64_t layers_ = 0, experts_ = 0;
  double unexpected_bytes_ = 0;
};

}  // namespace dsv4::apps
