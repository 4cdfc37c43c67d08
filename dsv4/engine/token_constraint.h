// Which tokens may come next in an answer, such as those that continue a text under a grammar.
//
// A place in an answer is a number. The engine can therefore go back to an earlier place, and
// several answers can share one constraint; nothing of an answer is kept here.

#pragma once

#include <cstdint>
#include <span>

namespace dsv4 {

class TokenConstraint {
 public:
  using State = int64_t;
  static constexpr State kEnded = -1;  // no token may follow

  virtual ~TokenConstraint() = default;

  // The functions below may be called by several threads. They throw where the constraint cannot
  // say what may follow; the engine then ends the answer with Finish::kConstraintFailed.
  virtual State start() = 0;
  virtual State advance(State state, int32_t token) = 0;
  // Whether any token is forbidden.
  virtual bool restricts(State state) = 0;
  // Sets bit t % 32 of word t / 32 where token t may follow, and clears the others. At least one is
  // set. out: [ceil(V / 32)]
  virtual void mask(State state, std::span<uint32_t> out) = 0;
  // Makes the mask of a place that the answer may never reach. Where a constraint limits the work
  // of an answer, this is not counted.
  virtual void mask_ahead(State state, std::span<uint32_t> out) { mask(state, out); }
};

}  // namespace dsv4
