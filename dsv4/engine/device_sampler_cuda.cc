#include "dsv4/engine/device_sampler.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/not_finite.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"

namespace dsv4 {

DeviceSampler::DeviceSampler(Device& device, const SampleLayout& layout)
    : device_(device),
      layout_(layout),
      host_block_(DType::kU8, {layout.bytes}, device.pinned()),
      device_block_(DType::kU8, {layout.bytes}, device.memory()) {
}

void DeviceSampler::copy_to_device(int64_t begin, int64_t end) {
  cuda_check(
      cudaMemcpyAsync(device_block_.view().data + begin, host_block_.view().data + begin,
                      static_cast<size_t>(end - begin), cudaMemcpyHostToDevice, device_.stream()),
      "copy of the sampling parameters");
}

void DeviceSampler::copy_to_host(int64_t begin, int64_t end) {
  cuda_check(
      cudaMemcpyAsync(host_block_.view().data + begin, device_block_.view().data + begin,
                      static_cast<size_t>(end - begin), cudaMemcpyDeviceToHost, device_.stream()),
      "copy of the chosen tokens");
}

void DeviceSampler::send(const SampleRows& rows) {
  const int64_t n = rows.count();
  const auto num_terms = static_cast<int64_t>(rows.terms.size());
  DSV4_CHECK(n <= layout_.rows && num_terms <= layout_.terms, "{} rows, {} terms, room for {}, {}",
             n, num_terms, layout_.rows, layout_.terms);
  const auto put = [&](const auto& list, int64_t at) {
    const auto bytes = static_cast<int64_t>(list.size_bytes());
    std::memcpy(here<std::byte>(at), list.data(), static_cast<size_t>(bytes));
    return at + bytes;
  };
  put(rows.params, layout_.params_at);
  int64_t end = put(rows.steps, layout_.steps_at);
  if (!rows.term_begin.empty()) {
    put(rows.term_begin, layout_.begin_at);
    end = put(rows.terms, layout_.terms_at);
  }
  copy_to_device(0, end);
  if (!rows.mask.empty()) copy_to_device(layout_.mask_at, put(rows.mask, layout_.mask_at));
}

SampleArgs DeviceSampler::args(const ConstTensorView& logits, bool terms,
                               const ConstTensorView& mask) const {
  const int64_t n = logits.dim(0);
  const std::byte* const block = device_block_.view().data;
  const auto count = static_cast<size_t>(n);
  SampleArgs args{
      .logits = logits,
      .params = {reinterpret_cast<const SamplingParams*>(block + layout_.params_at), count},
      .logprobs = there(DType::kF32, layout_.logprobs_at, {n}),
      .mask = mask};
  if (terms) {
    args.terms = {reinterpret_cast<const TokenTerm*>(block + layout_.terms_at),
                  static_cast<size_t>(layout_.terms)};
    args.term_begin = {reinterpret_cast<const int32_t*>(block + layout_.begin_at), count + 1};
  }
  return args;
}

std::vector<Sampled> DeviceSampler::sample(const Context& context, const ConstTensorView& logits,
                                           const SampleRows& rows) {
  const int64_t n = rows.count(), top = rows.most_top_logprobs();
  send(rows);
  const std::byte* const block = device_block_.view().data;
  SampleArgs args =
      this->args(logits, !rows.term_begin.empty(), rows.mask_view(block + layout_.mask_at));
  args.steps = {reinterpret_cast<const uint64_t*>(block + layout_.steps_at),
                static_cast<size_t>(n)};
  args.ids = there(DType::kI32, layout_.ids_at, {n});
  if (top > 0) {
    args.top_ids = there(DType::kI32, layout_.top_ids_at, {n, top});
    args.top_logprobs = there(DType::kF32, layout_.top_logprobs_at, {n, top});
  }
  dsv4::sample(context, args);
  copy_to_host(layout_.ids_at, top > 0 ? layout_.bytes : layout_.logprobs_at + 4 * n);
  device_.wait();
  std::vector<Sampled> tokens =
      sampled_of(rows, here<int32_t>(layout_.ids_at), here<float>(layout_.logprobs_at),
                 here<int32_t>(layout_.top_ids_at), here<float>(layout_.top_logprobs_at));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].id < 0)
      throw NotFinite(fmt::format("the logits of row {} are not numbers to choose from", i));
  }
  return tokens;
}

// Rows of padding have the likeliest token of whatever their logits are.
void DeviceSampler::send(const DraftChain& chain, int64_t rows) {
  const SampleRows& given = chain.sampling;
  const auto n = static_cast<size_t>(rows), given_rows = given.params.size();
  const int64_t guesses = std::ssize(chain.sequences);
  DSV4_CHECK(guesses * rows <= layout_.drafts, "{} drafts of {} rows, room for {}", guesses, rows,
             layout_.drafts);
  std::vector<SamplingParams> params(given.params.begin(), given.params.end());
  params.resize(n, {.temperature = 0});
  std::vector<uint64_t> steps(given.steps.begin(), given.steps.end());
  steps.resize(n);
  std::vector<int32_t> begin(given.term_begin.begin(), given.term_begin.end());
  if (!begin.empty()) begin.resize(n + 1, begin.back());
  std::vector<uint32_t> mask(given.mask.begin(), given.mask.end());
  mask.resize(mask.size() / given_rows * n, ~uint32_t{0});
  send(SampleRows{
      .params = params, .steps = steps, .terms = given.terms, .term_begin = begin, .mask = mask});
  auto* number = here<uint64_t>(layout_.draft_steps_at);
  for (size_t guess = 0; guess < chain.guesses(); ++guess)
    for (const uint64_t step : steps) *number++ = step + guess;
  copy_to_device(layout_.draft_steps_at, layout_.draft_steps_at + 8 * rows * guesses);
}

TensorView DeviceSampler::drafts(size_t guess, int64_t rows) const {
  return there(DType::kI32, layout_.drafts_at + 4 * rows * static_cast<int64_t>(guess), {rows});
}

void DeviceSampler::draw(const Context& context, const DraftChain& chain, size_t guess,
                         int64_t rows) {
  const std::byte* const block = device_block_.view().data;
  const TensorView logits = chain.logits(guess, rows);
  ConstTensorView mask;
  if (guess == 0 && !chain.sampling.mask.empty())
    mask = there(DType::kI32, layout_.mask_at, {rows, ceil_div(logits.dim(1), 32)});
  SampleArgs args = this->args(logits, !chain.sampling.term_begin.empty(), mask);
  args.steps = {reinterpret_cast<const uint64_t*>(block + layout_.draft_steps_at) +
                    guess * static_cast<size_t>(rows),
                static_cast<size_t>(rows)};
  args.ids = drafts(guess, rows);
  dsv4::sample(context, args);
}

Drafted DeviceSampler::take(const DraftChain& chain, int64_t rows) {
  const int64_t guesses = std::ssize(chain.sequences);
  copy_to_host(layout_.drafts_at, chain.block() ? layout_.confidences_at + 4 * rows * guesses
                                                : layout_.drafts_at + 4 * rows * guesses);
  device_.wait();
  Drafted drafted;
  for (int64_t guess = 0; guess < guesses; ++guess) {
    const auto n = chain.sequences[static_cast<size_t>(guess)];
    const int32_t* const drawn = here<int32_t>(layout_.drafts_at) + guess * rows;
    drafted.ids.emplace_back(drawn, drawn + n);
    if (!chain.block()) continue;
    const float* const confidences = here<float>(layout_.confidences_at) + guess * rows;
    std::vector<float>& chances = drafted.chances.emplace_back();
    for (int64_t i = 0; i < n; ++i) chances.push_back(chance_of(confidences[i]));
  }
  return drafted;
}

}  // namespace dsv4
