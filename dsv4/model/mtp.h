// The MTP block mtp.0 (docs/spec/dsv4.md 9.1): one window-only layer that guesses a token further
// than the model. A row belongs to a token x at position u >= 1 and to the streams X of the token
// before it, as they leave the model's last layer:
//
//   X0_m   = Lin8(RMS(X_m; hnorm); h_proj) + Lin8(RMS(embed[x]; enorm); e_proj)   m = 0 .. M - 1
//   X1     = Block(X0), at position u - 1; attention over the window of rows
//   logits = head(RMS(hc_head(X1); norm))            of the token at u + 1
//
// Attention reads of a row only its key, which depends on X and x alone. So the tokens of a step
// are entered (enter_rows) without attention and experts, and the whole block runs only for rows
// that guess (ModelShard::draft): the first of a chain with the model's X, which enters the newest
// token, every further one with X1 and the guess before. The model's next step enters the tokens
// that it computes again, with true streams.
//
// The key of a row lies in the window group at the place of its token, u, and not at u - 1: the row
// depends on that token, so a page that several sequences share has equal keys for all of them.
// The token at position 0 has no row.
//
// On several ranks the block is cut as a layer is, and e_proj and h_proj are whole on every rank:
// their products take about as long as an exchange of them would.

#pragma once

#include "dsv4/model/attention.h"
#include "dsv4/model/batch.h"
#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// Writes the keys of the step's tokens.
void enter_rows(Step& step, const DrafterWeights& weights, const ConstTensorView& embedding,
                const RopeTables& tables, const LayerCache& cache, const DrafterStreams& drafter);

}  // namespace dsv4
