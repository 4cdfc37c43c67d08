// Bump allocator for the temporaries of one forward step. Memory is kept between steps; a Scope
// returns what was taken inside it, so consecutive layers reuse the same bytes.
//
// A counting Scratch owns nothing and returns views at addresses without memory: after the same
// takes and scopes as in a forward step, peak_bytes() is the memory that the step needs. A
// borrowing Scratch returns parts of memory that its caller owns, and never more than that.

#pragma once

#include <deque>
#include <initializer_list>

#include "dsv4/tensor/buffer.h"

namespace dsv4 {

class Scratch {
 public:
  explicit Scratch(Memory& memory = host_memory()) : memory_(&memory) {}
  static Scratch counting();
  // bytes: [n] U8, 256-byte aligned, must outlive this object; may be empty. A take() that does not
  // fit throws kResource with both sizes.
  static Scratch borrowing(const TensorView& bytes);

  // Allocates one chunk for all takes that follow, so there are no gaps. Call before the first
  // take().
  void reserve(int64_t bytes);
  // Uninitialized memory that is valid until the enclosing Scope ends.
  TensorView take(DType dtype, std::initializer_list<int64_t> shape);
  int64_t reserved_bytes() const;
  // Everything that is taken at present, as one view. Only valid while it fits the reservation.
  TensorView taken() const;
  int64_t peak_bytes() const { return peak_; }  // the most bytes taken at a time
  bool is_counting() const { return counting_; }

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
  std::byte* chunk_data() const;  // of the chunk in use
  int64_t room() const;           // bytes of the chunk in use, taken or free

  Memory* memory_;  // null: all memory is borrowed_
  TensorView borrowed_;
  std::deque<Buffer> chunks_;  // each [bytes] U8; when one is full, the next is used
  size_t chunk_ = 0;           // index of the chunk in use
  int64_t used_ = 0;           // bytes taken of it
  int64_t live_ = 0, peak_ = 0;
  bool counting_ = false;
};

}  // namespace dsv4
