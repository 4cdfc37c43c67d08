// Copies of experts_fetch beside the products of the experts that are in their places: on a second
// stream of the device, in steps that are captured or not.
//
//   main stream    router | decide | products of turn 0: in their places | turn 1: others | sum
//   second stream                  | copies to the places of turn 1      ^ main waits here
//
// Nothing waits inside a kernel: the streams are ordered by events, which become edges of a graph.
// The copies have SMs of their own (busy_sms()), since a kernel of products fills those that it is
// given. They may overwrite only places that no expert of turn 0 has: decide.h gives no place away
// that the step reads.

#pragma once

#include "dsv4/ops/parts/experts/expert_turns.h"

namespace dsv4 {

class Device;

// What lives from decide to the end of the copies; one for all layers, which come one by one.
struct FetchLists {
  TensorView turn_of;  // [e] I32: 0: in its place before the step; 1: comes with it, or at home
  TensorView moves;    // [e, 2] I32: expert, place
  TensorView count;    // [1] I32: of the moves
};

// Two turns, of which only the second waits.
class FetchBeside : public ExpertTurns {
 public:
  int count() const override { return 2; }
  ConstTensorView turn_of() const override { return lists().turn_of; }

  virtual const FetchLists& lists() const = 0;
  // What is enqueued there up to join() comes after what the main stream was given so far, and
  // before turn 1.
  virtual Device& fork() = 0;
  virtual void join() = 0;
};

}  // namespace dsv4
