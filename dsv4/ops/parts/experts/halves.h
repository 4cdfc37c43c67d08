// The two halves of experts.h, for ranks that each have some rows of every expert and exchange what
// stands between them (docs/spec/several-gpus.md 2.3), or that have whole experts and exchange what
// stands before the sum (docs/adr/0039).
//
//   experts_hidden   h = weight * (silu(w1 x) * w3 x), clamped      one row for each token and slot
//   experts_output   acc[t] += w2 h, experts in ascending order of their ids; then the addend
//     or             rows[t * k + s] = w2 h, of slot s of token t
//   experts_sum      acc[t] += rows of token t, in that order; then the addend
//
// Rows of h are in the order of the experts: by ascending id, then token, then slot. All ranks have
// the same choices and so the same order, in which kernels read and write h without a pass between.
//
// Formulas and rounding points are those of experts.h: the halves, one after the other, give its
// bits, whatever rows of w1, w3 and w2 a call has (on a device where Context::need_batch_invariant
// is set). The first half reads the gate_up of kernel images, the second their down. h is not
// quantized when it is exchanged; the second half passes it through Q8 where mode and format want
// that.
//
// Of a stack that is part of a layer, pairs of other experts are left out: their rows of h, which
// have their places, and of `rows` hold anything after a call. A sum needs all experts.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/parts/experts/expert_stack.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

class Scratch;
namespace gemm::experts {
struct Entry;
struct Start;
}  // namespace gemm::experts

// What a first half leaves for the second one of the same choices, on the host.
struct FirstHalf {
  // On a device: a kernel of the first half had waited for the ids when it let the next one start,
  // so kernels that come later may read them before they wait.
  bool ids_are_complete = false;
  // The logits of the router likewise: the first half routes by itself (ops/model/moe).
  bool logits_are_complete = false;
  // Memory that the second half sees, where the first one may leave a list for it; null:
  // each makes its own.
  Scratch* keep = nullptr;
  // The list of a second half that stores rows, for products of so many stages on so many CTAs. It
  // is complete when ids are. Null: there is none.
  struct List {
    const gemm::experts::Entry* entries = nullptr;
    const gemm::experts::Start* starts = nullptr;
    int stages = 0, ctas = 0;
  } list{};
};

struct ExpertsHiddenArgs {
  ConstTensorView x;  // [t, d] f32|bf16
  ExpertStack stack;  // e experts of equal shape, of which w1 and w3 are read: [i, d]
  // Both empty: every token goes to the only expert of the stack, with weight 1.
  ConstTensorView experts;     // [t, k] I32 in [0, e), distinct or not
  ConstTensorView weights;     // [t, k] f32
  float swiglu_limit = 0.f;    // 0: no clamp
  TensorView hidden;           // [t * k, i] f32|bf16, in the order of the experts
  Mirrors mirrors{};           // of hidden
  FirstHalf* first = nullptr;  // written, if not null
};

struct ExpertsOutputArgs {
  ConstTensorView hidden;    // [t * k, I] f32|bf16, in the order of the experts
  ExpertStack stack;         // of which w2 is read: [n, I]
  ConstTensorView experts;   // as above
  TensorView acc{};          // [t, n] f32; empty with `rows`
  bool add = true;           // false: acc is overwritten
  ConstTensorView addend{};  // [t, n] f32|bf16, added to acc after all experts; empty: nothing
  TensorView rows{};         // [t * k, n] f32|bf16, by token and slot: nothing is added
  FirstHalf first{};         // of the call that gave `hidden`

  const TensorView& out() const { return rows.empty() ? acc : rows; }
  int64_t tokens() const { return experts.empty() ? out().dim(0) : experts.dim(0); }
};

struct ExpertsSumArgs {
  ConstTensorView rows;      // [t * k, n] f32|bf16, by token and slot
  ConstTensorView experts;   // [t, k] I32
  int64_t num_experts = 0;   // that ids count
  TensorView acc;            // [t, n] f32
  bool add = true;           // false: acc is overwritten
  ConstTensorView addend{};  // [t, n] f32|bf16; empty: nothing
  Mirrors mirrors{};         // of acc
};

extern const Op<ExpertsHiddenArgs> experts_hidden;
extern const Op<ExpertsOutputArgs> experts_output;
extern const Op<ExpertsSumArgs> experts_sum;

// Their costs read the ids. In a dry run these have no memory: the costs that are expected if each
// token chooses k distinct experts and all choices are equally likely.
Cost expected_cost(const ExpertsHiddenArgs& args);
Cost expected_cost(const ExpertsOutputArgs& args);

}  // namespace dsv4
