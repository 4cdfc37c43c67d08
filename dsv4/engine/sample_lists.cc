#include "dsv4/engine/sample_lists.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

int SampleRows::most_top_logprobs() const {
  int most = 0;
  for (const SamplingParams& one : params) most = std::max(most, one.top_logprobs);
  return most;
}

ConstTensorView SampleRows::mask_view(const std::byte* data) const {
  if (mask.empty()) return {};
  const int64_t words = static_cast<int64_t>(mask.size()) / count();
  return {TensorMeta::contiguous(DType::kI32, {count(), words}), data};
}

std::vector<Sampled> sampled_of(const SampleRows& rows, const int32_t* ids, const float* logprobs,
                                const int32_t* top_ids, const float* top_logprobs) {
  const auto columns = static_cast<size_t>(rows.most_top_logprobs());
  std::vector<Sampled> tokens(rows.params.size());
  for (size_t r = 0; r < tokens.size(); ++r) {
    tokens[r].id = ids[r];
    tokens[r].logprob = logprobs[r];
    for (size_t i = r * columns; i < r * columns + columns && top_ids[i] >= 0; ++i)
      tokens[r].top.push_back({top_ids[i], top_logprobs[i]});
  }
  return tokens;
}

Sampled with_drawn_logprobs(const SampleRows& rows, int64_t r, const ConstTensorView& logits,
                            int32_t id) {
  const auto at = static_cast<size_t>(r);
  const int64_t top = rows.params[at].top_logprobs;
  const Buffer ids(DType::kI32, {1}), logprobs(DType::kF32, {1});
  const Buffer top_ids(DType::kI32, {1, top}), top_logprobs(DType::kF32, {1, top});
  ids.as<int32_t>()[0] = id;
  SampleRows row{.params = rows.params.subspan(at, 1), .steps = rows.steps.subspan(at, 1)};
  if (!rows.term_begin.empty()) {
    row.terms = rows.terms;
    row.term_begin = rows.term_begin.subspan(at, 2);
  }
  if (!rows.mask.empty()) {
    const size_t words = rows.mask.size() / rows.params.size();
    row.mask = rows.mask.subspan(at * words, words);
  }
  SampleArgs args{.logits = logits,
                  .params = row.params,
                  .steps = row.steps,
                  .ids = ids,
                  .logprobs = logprobs,
                  .terms = row.terms,
                  .term_begin = row.term_begin};
  args.mask = row.mask_view(reinterpret_cast<const std::byte*>(row.mask.data()));
  if (top > 0) args.top_ids = top_ids, args.top_logprobs = top_logprobs;
  drawn_logprobs(args, 0);
  return sampled_of(row, ids.as<int32_t>(), logprobs.as<float>(), top_ids.as<int32_t>(),
                    top_logprobs.as<float>())[0];
}

SampleLists::SampleLists(int64_t vocab) : words_(static_cast<size_t>(ceil_div(vocab, 32))) {
}

void SampleLists::add(const SamplingParams& params, uint64_t step,
                      std::span<const TokenTerm> terms) {
  params_.push_back(params);
  steps_.push_back(step);
  terms_.insert(terms_.end(), terms.begin(), terms.end());
  term_begin_.push_back(static_cast<int32_t>(terms_.size()));
  if (!masks_.empty()) masks_.resize(params_.size() * words_, ~uint32_t{0});
}

std::span<uint32_t> SampleLists::mask() {
  masks_.resize(params_.size() * words_, ~uint32_t{0});
  return std::span(masks_).last(words_);
}

SampleRows SampleLists::rows() const {
  SampleRows rows{.params = params_, .steps = steps_, .mask = masks_};
  if (!terms_.empty()) {
    rows.terms = terms_;
    rows.term_begin = term_begin_;
  }
  return rows;
}

SampleLayout::SampleLayout(int64_t sampled_rows, int64_t vocab, int64_t all_terms,
                           int64_t all_drafts)
    : rows(sampled_rows), terms(all_terms), drafts(all_drafts) {
  int64_t end = 0;
  const auto take = [&end](int64_t taken) {
    const int64_t at = end;
    end = align_up(end + taken, 64);
    return at;
  };
  const auto size = [](size_t bytes_of_one) { return static_cast<int64_t>(bytes_of_one); };
  params_at = take(rows * size(sizeof(SamplingParams)));
  steps_at = take(rows * size(sizeof(uint64_t)));
  begin_at = take((rows + 1) * size(sizeof(int32_t)));
  terms_at = take(terms * size(sizeof(TokenTerm)));
  mask_at = take(rows * ceil_div(vocab, 32) * size(sizeof(uint32_t)));
  draft_steps_at = take(drafts * size(sizeof(uint64_t)));
  drafts_at = take(drafts * size(sizeof(int32_t)));
  confidences_at = take(drafts * size(sizeof(float)));
  ids_at = take(rows * size(sizeof(int32_t)));
  logprobs_at = take(rows * size(sizeof(float)));
  top_ids_at = take(rows * kMaxTopLogprobs * size(sizeof(int32_t)));
  top_logprobs_at = take(rows * kMaxTopLogprobs * size(sizeof(float)));
  bytes = end;
}

}  // namespace dsv4
