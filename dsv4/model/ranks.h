// The places of a forward step at which the ranks of a model exchange values, and the products on
// both sides of each (docs/spec/several-gpus.md 2.3):
//
//   embedding   rows of the table      -> all rows            -> streams
//   picks       of own tokens          -> of all tokens       -> the entries that they attend to
//   u           o wo_a^T, own groups   -> all columns         -> own columns of y = u wo_b^T
//               (in steps of many tokens Q8 of it)
//   y           own columns            -> all columns         -> the next boundary
//   h           own columns of every token and expert         -> own columns of w2 h
//   y           own columns            -> all columns         -> the next boundary
//     or, with whole experts (ExpertsPlacement),
//   w2 h        rows of own experts    -> rows of all experts
//   h           of the shared expert, own columns             -> y, all of it on every rank
//   logits      own columns            -> all columns, on rank 0 alone; of guesses on every rank
//
// Every value is computed by its owner with the op of a step on one rank, and copied. Router,
// caches, index keys and hyper-connections run on all ranks with the same inputs, so that they
// agree bit for bit. step.ranks is set; the shapes of the rank's weights say what it owns. Picks
// are exchanged in steps of many tokens; in others every rank selects for all of them.

#pragma once

#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// Steps of so many tokens or more: what ranks save then is more than the exchange takes
// (docs/spec/several-gpus.md 3.4).
inline constexpr int64_t kLeastSharedTokens = 512;
// Tokens are dealt out in units that keep rows of all dtypes aligned.
inline constexpr int64_t kSharedTokensUnit = 16;

// Where a step takes the tensors that its ranks exchange. Of many tokens, that is memory which all
// ranks share, if they have some: owners store their parts on all ranks, so that an exchange only
// waits.
Scratch& exchanged_scratch(const Step& step, SymmetricHalf half);

// Step::token_ends for steps of at least `least` tokens, and two units; a rank may get none. They
// follow from the size of the step alone, so that all ranks agree.
ColumnEnds share_tokens(const Step& step, int64_t least);

// The tokens of a step, up to `tokens`, in which the rank's share is largest: with a unit more in
// the step, a rank may have one less.
int64_t tokens_of_largest_share(ShardId id, int64_t tokens);

// Whether a boundary between blocks may bring their outputs together (Outputs), if one of its
// implementations does so.
bool outputs_need_no_gather(const Step& step, const MoeWeights& weights);
// Where the columns of an output are that stays.
ColumnHomes homes_of_output(const Step& step);
// The exchange of an output by the boundary; empty where there is none. y: [T, D]
PeerWords words_of_output(const Step& step, const TensorView& y);
// Brings an output that was not gathered to all ranks. y: [T, D]
void gather_output(const Step& step, const TensorView& y);

// The tokens that this rank selects entries for.
ShardId::Rows own_tokens(const Step& step);

// picks: [T, k] I32, of which this rank has written the rows of own_tokens(). With token_ends.
void gather_picks(const Step& step, const TensorView& picks);

// table: the rank's rows; streams: [T, m, D]
void embed_of_ranks(const Step& step, const ConstTensorView& table, const TensorView& streams);

// As above, for a drafter: of ids that a device alone may know, without RankLists. out: [T, D]
void embed_rows_of_ranks(const Step& step, const ConstTensorView& table, const TensorView& out);

// o: [T, h of the rank, d]; y: [T, D]
void attention_out_of_ranks(const Step& step, const AttentionWeights& weights,
                            const ConstTensorView& o, const TensorView& y);

// As run_moe(). acc: [T, D] f32
void moe_of_ranks(const Step& step, const MoeWeights& weights, const HcBoundaryArgs& boundary,
                  const TensorView& acc);

// h: [n, D]; logits: [n, V] f32 on rank 0
void head_of_ranks(const Step& step, const WeightView& head, const ConstTensorView& h,
                   const TensorView& logits);

// Every rank draws guesses. The columns of their logits [n, V] that this rank computes, and the
// exchange after which it has all of them:
TensorView own_guess_logits(const Step& step, const TensorView& logits);
void gather_guess_logits(const Step& step, const TensorView& logits);

}  // namespace dsv4
