// The sampler's inputs of one step, collected row by row, what it gives, and the places of both in
// the two blocks of memory (page-locked and on the device) that a device's sampler has for them.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/ops/model/sample/sample.h"

namespace dsv4 {

// As in SampleArgs, all on the host.
struct SampleRows {
  std::span<const SamplingParams> params;  // [rows]
  std::span<const uint64_t> steps;         // [rows]
  std::span<const TokenTerm> terms;
  std::span<const int32_t> term_begin;  // [rows + 1], or empty: no row has terms
  std::span<const uint32_t> mask;       // [rows, ceil(V / 32)], or empty: every token is allowed

  int64_t count() const { return static_cast<int64_t>(params.size()); }
  int most_top_logprobs() const;  // of all rows
  // [rows, ceil(V / 32)] I32 at `data`, which has the bits of `mask`; empty without a mask.
  ConstTensorView mask_view(const std::byte* data) const;
};

struct LikelyToken {
  int32_t id = -1;
  float logprob = 0.f;
};

// A chosen token; log-probabilities are of the logits as the model gave them, or, with
// params.processed_logprobs, of the distribution that the token was drawn from.
struct Sampled {
  int32_t id = -1;
  float logprob = 0.f;
  std::vector<LikelyToken> top;  // the params.top_logprobs likeliest tokens, in descending order
};

// What the sampler has written. top_ids, top_logprobs: [rows, rows.most_top_logprobs()]
std::vector<Sampled> sampled_of(const SampleRows& rows, const int32_t* ids, const float* logprobs,
                                const int32_t* top_ids, const float* top_logprobs);

// The token that was chosen in row r, with what drawn_logprobs() says of it.
// logits: [1, V] f32 of this row, on the host
Sampled with_drawn_logprobs(const SampleRows& rows, int64_t r, const ConstTensorView& logits,
                            int32_t id);

class SampleLists {
 public:
  explicit SampleLists(int64_t vocab);

  void add(const SamplingParams& params, uint64_t step, std::span<const TokenTerm> terms = {});
  // Mask of the row that was added last; every token is allowed at first.
  std::span<uint32_t> mask();
  // Valid until the next call of add().
  SampleRows rows() const;

 private:
  const size_t words_;  // of a mask
  std::vector<SamplingParams> params_;
  std::vector<uint64_t> steps_;
  std::vector<TokenTerm> terms_;
  std::vector<int32_t> term_begin_ = {0};
  std::vector<uint32_t> masks_;  // of all rows, once one row has a mask
};

// Offsets in bytes, each a multiple of 64. They do not depend on how many rows and terms a step
// has, so that a captured launch stays valid.
struct SampleLayout {
  SampleLayout(int64_t rows, int64_t vocab, int64_t terms, int64_t drafts = 0);

  int64_t rows, terms, drafts;  // that there is room for
  // Written by the host. draft_steps: as steps, of the drafts that a drafter guesses in a row
  int64_t params_at, steps_at, begin_at, terms_at, mask_at, draft_steps_at;
  // Written by the device.
  int64_t drafts_at, confidences_at, ids_at, logprobs_at, top_ids_at, top_logprobs_at;
  int64_t bytes;
};

}  // namespace dsv4
