// Experts of a layer that are computed in turns, because the bytes of some are not in their places
// yet when those of others are.
//
//   for each turn   begin(turn); the products of its experts; end(turn)
//   then            the sum over all experts, in their own order
//
// A pair has the same bits in every turn, and sums begin when all turns have ended: what is
// computed first changes no result. Implementations that read kernel images take turns; the places
// of an expert (ExpertImages::places) hold it during its turn only.

#pragma once

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

class ExpertTurns {
 public:
  virtual ~ExpertTurns() = default;
  virtual int count() const = 0;
  // [e] I32: of each expert; device memory
  virtual ConstTensorView turn_of() const = 0;
  // Enqueues what makes the calling stream wait for the turn's experts, if anything does: then it
  // returns true, and the kernel that is enqueued next must not start early, since it waits for
  // more than the kernel before it.
  virtual bool begin(int turn) = 0;
  // What reads the turn's experts has been enqueued.
  virtual void end(int turn) = 0;
  // SMs that others use during this turn: kernels with a CTA for each SM have so many fewer.
  virtual int busy_sms(int /*turn*/) const { return 0; }
};

}  // namespace dsv4
