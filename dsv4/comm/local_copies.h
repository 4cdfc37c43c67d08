// A rank of a GPU whose peers are not there, for benchmarks: exchanges are copies of its own values
// (docs/spec/several-gpus.md 6). A step takes the time of the rank's kernels and of copies of the
// size that it would receive; what it computes means nothing, but its values are finite. Rows,
// whose owners the GPU alone knows, become zeros.

#pragma once

#include "dsv4/comm/communicator.h"

namespace dsv4 {

class Device;

class LocalCopies final : public Communicator {
 public:
  // bytes: of the halves that a rank beside others has
  LocalCopies(Device& device, ShardId id, const SymmetricBytes& bytes);
  ShardId id() const override { return id_; }
  SymmetricMemory* symmetric() override { return &symmetric_; }
  void gather(std::span<const Gathered> tensors, const Place& place) override;
  void to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
               const Place& place) override;
  // Rows of others keep what this rank has written there.
  void gather_rows(const TensorView&, const ConstTensorView&, const Place&) override {}

 private:
  // own: [rows, columns of this rank] -> the columns of all others in `all`
  void fill(const TensorView& own, const TensorView& all, const ColumnEnds& ends);

  Device& device_;
  const ShardId id_;
  SymmetricMemory symmetric_;  // without mirrors
};

}  // namespace dsv4
