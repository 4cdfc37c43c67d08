// Bump allocator for the temporaries of one forward step. Memory is kept between steps; a Scope
// gives back what was taken inside it, so blocks of layers reuse the same bytes.
//
// A counting Scratch owns nothing and hands out views without data: who walks through the same
// takes and scopes as a forward step reads off peak_bytes() what the step needs. A borrowing
// Scratch hands out memory that its caller owns, and never more than that.

#pragma once

#include <deque>
#include <initializer_list>

#include "dsv4/tensor/buffer.h"

namespace dsv4 {

class Scratch {
 public:
  explicit Scratch(Memory& memory = host_memory()) : memory_(&memory) {}
  static Scratch counting();
  // bytes: [n] U8, 256-byte aligned, for as long as this lives; empty: no byte. A take() that does
  // not fit throws kResource with both sizes.
  static Scratch borrowing(const TensorView& bytes);

  // One chunk for all that follows, which then has no gaps. Before the first take().
  void reserve(int64_t bytes);
  // Uninitialised memory that lives until the enclosing Scope ends.
  TensorView take(DType dtype, std::initializer_list<int64_t> shape);
  int64_t reserved_bytes() const;
  // Everything that is taken now, as one view. Only while it fits what was reserved.
  TensorView taken() const;
  int64_t peak_bytes() const { return peak_; }  // the most that was taken at a time

  class Scope {
   public:
    explicit Scope(Scratch& scratch)
        : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_), live_(scratch.live_) {}
    ~Scope() { scratch_.chunk_ = chunk_, scratch_.used_ = used_, scratch_.live_ = live_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scratch& scratch_;
    size_t chunk_;
    int64_t used_, live_;
  };

 private:
  void next_chunk(int64_t bytes);
  bool borrows() const { return memory_ == nullptr; }
  int64_t chunk_bytes(size_t chunk) const { return chunks_[chunk].view().numel(); }
  std::byte* chunk_data() const;  // of the one in use
  int64_t room() const;           // bytes in it, used or not

  Memory* memory_;  // null: borrowed_ is all there is
  TensorView borrowed_;
  std::deque<Buffer> chunks_;  // each [bytes] U8; a full one is left and the next is used
  size_t chunk_ = 0;           // the one in use
  int64_t used_ = 0;           // bytes of it
  int64_t live_ = 0, peak_ = 0;
  bool counting_ = false;
};

}  // namespace dsv4
