// The sampler of a device runner: its lists and what it draws lie in one block of device memory and
// a page-locked copy of it (SampleLayout), at addresses that never change, so that a captured graph
// draws too. CUDA builds.

#pragma once

#include <vector>

#include "dsv4/engine/runner.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

class DeviceSampler {
 public:
  DeviceSampler(Device& device, const SampleLayout& layout);

  // Runner::sample
  std::vector<Sampled> sample(const Context& context, const ConstTensorView& logits,
                              const SampleRows& rows);

  // The drafts of a chain, each guess padded to `rows` rows: sends its lists,
  void send(const DraftChain& chain, int64_t rows);
  // draws a guess, [rows] I32 at drafts(guess, rows),
  void draw(const Context& context, const DraftChain& chain, size_t guess, int64_t rows);
  TensorView drafts(size_t guess, int64_t rows) const;
  // and waits for all of them, and for what a block says of them at confidences(), [n, 1] f32.
  TensorView confidences(int64_t n) const {
    return there(DType::kF32, layout_.confidences_at, {n, 1});
  }
  Drafted take(const DraftChain& chain, int64_t rows);

 private:
  // Copies the parts of the lists that these rows have, and nothing else.
  void send(const SampleRows& rows);
  // Arguments without `steps` and `ids`, from lists that have been sent. terms: some row has them
  SampleArgs args(const ConstTensorView& logits, bool terms, const ConstTensorView& mask) const;
  void copy_to_device(int64_t begin, int64_t end);
  void copy_to_host(int64_t begin, int64_t end);
  TensorView there(DType dtype, int64_t at, std::initializer_list<int64_t> shape) const {
    return {TensorMeta::contiguous(dtype, shape), device_block_.view().data + at};
  }
  template <class T>
  T* here(int64_t at) const {
    return reinterpret_cast<T*>(host_block_.view().data + at);
  }

  Device& device_;
  const SampleLayout layout_;
  const Buffer host_block_, device_block_;
};

}  // namespace dsv4
