// Bump allocator for the temporaries of one forward step. Memory is kept between steps; a Scope
// gives back what was taken inside it, so blocks of layers reuse the same bytes.

#pragma once

#include <deque>
#include <initializer_list>

#include "dsv4/tensor/buffer.h"

namespace dsv4 {

class Scratch {
 public:
  // Uninitialised memory that lives until the enclosing Scope ends.
  TensorView take(DType dtype, std::initializer_list<int64_t> shape);
  int64_t reserved_bytes() const;

  class Scope {
   public:
    explicit Scope(Scratch& scratch)
        : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_) {}
    ~Scope() { scratch_.chunk_ = chunk_, scratch_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scratch& scratch_;
    size_t chunk_;
    int64_t used_;
  };

 private:
  void next_chunk(int64_t bytes);
  int64_t chunk_bytes(size_t chunk) const { return chunks_[chunk].view().numel(); }

  std::deque<Buffer> chunks_;  // each [bytes] U8; a full one is left and the next is used
  size_t chunk_ = 0;           // the one in use
  int64_t used_ = 0;           // bytes of it
};

}  // namespace dsv4
