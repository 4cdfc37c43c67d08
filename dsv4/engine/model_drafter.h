// Drafts by the drafter of the model's checkpoint, one after the other:
//
//   MTP     (model/mtp.h)     d1 from the streams of the newest cached token and the newest
//                             token y, di from the block's own streams and d(i-1)
//   DSpark  (model/dspark.h)  all from one block; di also depends on d(i-1)
//
// A draft is drawn as the sampler will draw the token that it stands for: with the request's
// parameters, its random number (of that token's place in the answer), and its penalties, as they
// are before the round: on a device the drafts of a round are drawn before the host knows the first
// of them. The drafter's logits resemble the model's, so the same random number mostly falls on the
// same token; an argmax would be wrong wherever the model hesitates. The first draft keeps to the
// mask of the request's constraint where that is made already.
//
// Something that is not a number ends the drafts: on the host all of them, on a device those whose
// row it is.

#pragma once

#include "dsv4/engine/executor.h"
#include "dsv4/engine/speculation.h"

namespace dsv4 {

class ModelDrafter final : public Drafter {
 public:
  // The executor has limits().drafter and outlives this object. The pages of a request's newest
  // token and of its drafts must have been reserved.
  explicit ModelDrafter(Executor& executor) : executor_(executor) {}
  void propose(std::span<DraftWant> wants) override;
  int64_t most() const override;
  bool one_pass() const override;

 private:
  Executor& executor_;
};

}  // namespace dsv4
