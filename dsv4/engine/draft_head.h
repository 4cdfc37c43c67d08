// A copy of the model's head in 4 bits, for guesses alone: they may be wrong, so no token depends
// on it, and a pass of MTP reads a quarter of the bytes of a bf16 head (Flash: 281 MB of 1,059).
//
// It is made from the head where the model is, by quantize_kbit with the e4m3 codebook, and is not
// stored. A head that has few bits already gets none. A rank of several copies its own rows, with a
// scale of their own.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/model/model.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

inline constexpr int kDraftHeadBits = 4;

class DraftHead {
 public:
  // Empty: there is none of such a head.
  DraftHead() = default;
  DraftHead(const Model& model, Memory& memory);
  // What it takes.
  static int64_t bytes(const Model& model);

  const WeightView& view() const { return view_; }
  // Step::draft_head
  const WeightView* get() const { return view_.empty() ? nullptr : &view_; }

 private:
  Buffer planes_, scales_, codebook_;
  WeightView view_;
};

// One that has shapes and addresses, but no memory: for dry runs.
WeightView draft_head_shape(const Model& model);

}  // namespace dsv4
