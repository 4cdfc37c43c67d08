#include "apps/sampling_options.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

// "1234:-5.5"
LogitBias read_bias(const std::string& text) {
  LogitBias out;
  const char* const end = text.data() + text.size();
  const auto id = std::from_chars(text.data(), end, out.id);
  const bool has_id = id.ec == std::errc() && out.id >= 0 && id.ptr < end && *id.ptr == ':';
  const auto bias = std::from_chars(has_id ? id.ptr + 1 : end, end, out.bias);
  if (!has_id || bias.ec != std::errc() || bias.ptr != end || !(std::abs(out.bias) <= 1e6f))
    throw CLI::ValidationError(
        fmt::format("--logit-bias: '{}': want ID:BIAS, such as 42:-5", quotable(text)));
  return out;
}

}  // namespace

SamplingParams SamplingOptions::applied_to(SamplingParams params) const {
  params.temperature = temperature.value_or(params.temperature);
  params.top_k = top_k.value_or(params.top_k);
  params.top_p = top_p.value_or(params.top_p);
  params.min_p = min_p.value_or(params.min_p);
  params.repetition_penalty = repetition_penalty.value_or(params.repetition_penalty);
  params.presence_penalty = presence_penalty.value_or(params.presence_penalty);
  params.frequency_penalty = frequency_penalty.value_or(params.frequency_penalty);
  return params;
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  command
      .add_option("--temp", options.temperature, "temperature; 0 is greedy (default: the model's)")
      ->check(number_in(0.0, 100.0));
  command.add_option("--top-k", options.top_k, "most likely tokens to draw from; 0: all")
      ->check(integer_in(0, 1 << 24));
  command.add_option("--top-p", options.top_p, "nucleus mass (default: the model's)")
      ->check(number_in(1e-6, 1.0));
  command
      .add_option("--min-p", options.min_p,
                  "drop tokens that are less likely than this share of the likeliest; 0: none")
      ->check(number_in(0.0, 1.0));
  command
      .add_option("--repeat-penalty", options.repetition_penalty,
                  "divides the positive logits of tokens of the prompt and the answer; 1: off")
      ->check(number_in(0.01, 100.0));
  command
      .add_option("--presence-penalty", options.presence_penalty,
                  "subtracted from the logits of tokens of the answer; 0: off")
      ->check(number_in(-100.0, 100.0));
  command
      .add_option("--frequency-penalty", options.frequency_penalty,
                  "the same for each time that the token is in the answer; 0: off")
      ->check(number_in(-100.0, 100.0));
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias",
          [&options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) options.logit_bias.push_back(read_bias(text));
          },
          "ID:BIAS, added to the logit of a token; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--seed", options.seed, "random seed (default: a new one each run)")
      ->check(seed_number());
}

}  // namespace dsv4::apps
