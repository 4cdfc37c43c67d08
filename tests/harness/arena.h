// Memory for op tests. Every tensor ends exactly at an unreadable page, so one element too far
// crashes in the test that did it, and a canary precedes it. An implementation that changes an
// input fails.
//
// The arena can exchange the contents of inputs for others that are as legal (reverse()), so that
// the harness sees whether a call reads them when it should.

#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <vector>

#include "dsv4/tensor/tensor.h"
#include "tests/harness/fill.h"  // IWYU pragma: export

namespace dsv4::test {

enum class Role { kInput, kOutput, kInOut };

// `bytes` bytes at `from` are to be written to `to`.
struct Write {
  std::byte* to;
  const std::byte* from;
  int64_t bytes;
};

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  TensorView input(DType dtype, std::initializer_list<int64_t> shape) {
    return make(Role::kInput, dtype, shape);
  }
  TensorView output(DType dtype, std::initializer_list<int64_t> shape) {
    return make(Role::kOutput, dtype, shape);
  }
  // Read and written: restored to its value at freeze() before each run.
  TensorView inout(DType dtype, std::initializer_list<int64_t> shape) {
    return make(Role::kInOut, dtype, shape);
  }

  void freeze();        // remembers the contents of inputs and inouts
  void prepare();       // outputs filled with 0xff bytes (NaN in every float type), inouts restored
  void verify() const;  // EXPECTs that inputs and canaries are as they were
  // Bytes of outputs and inouts, to compare runs bit by bit.
  std::vector<std::byte> written() const;

  // prepare(), then other contents for inputs and inouts: floats in reverse order, everything else
  // (ids, lengths, codes, pages) with the rows of axis 0 in reverse order. With a freeze() in
  // between, a second call brings the first contents back.
  void reverse();
  // reverse() leaves this tensor as it is: its order is part of its meaning (prefix sums), or
  // kernels may rely on it not to change (weights).
  void keep_order(const TensorView& view) { block_of(view).ordered = true; }
  // What would bring inputs and inouts back to their contents at freeze().
  std::vector<Write> frozen_contents() const;

  // Role of the tensor that `data` points into; kInput for memory of others.
  Role role_of(const std::byte* data) const;

 private:
  struct Block {
    Role role;
    TensorView view;
    std::byte* map;
    size_t map_bytes;
    std::byte* canary;
    std::vector<std::byte> frozen;
    bool ordered = false;
  };
  Block& block_of(const TensorView& view);
  TensorView make(Role role, DType dtype, std::initializer_list<int64_t> shape);

  std::deque<Block> blocks_;
};

}  // namespace dsv4::test
