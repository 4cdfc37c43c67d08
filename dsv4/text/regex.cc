#include "dsv4/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <new>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/text/pattern.h"

namespace dsv4 {
namespace {

std::string pcre2_message(int code) {
  char text[256];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

// Steps allowed for one match: a few per byte for any reasonable pattern. Bounds the cost of a
// malicious pattern.
uint32_t step_limit(size_t bytes) {
  return static_cast<uint32_t>(std::min<size_t>(200'000 + 64 * bytes, UINT32_MAX));
}

// PCRE2 does not say how many steps a match took. Every match is tried with few steps first, which
// are free; those that need more count as kGrowth times what they need at most.
constexpr uint32_t kFreeSteps = 2000, kGrowth = 8;
// For all matches of a text together.
uint64_t steps_of_text(size_t bytes) {
  return 20'000'000 + uint64_t{256} * bytes;
}

}  // namespace

void Regex::Free::operator()(pcre2_code* code) const {
  pcre2_code_free(code);
}
void Regex::Scratch::Free::operator()(pcre2_match_data* data) const {
  pcre2_match_data_free(data);
}
void Regex::Scratch::Free::operator()(pcre2_match_context* context) const {
  pcre2_match_context_free(context);
}

Regex::Scratch::Scratch(size_t text_bytes)
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      steps_left_(steps_of_text(text_bytes)) {
  if (!data_ || !context_) throw std::bad_alloc();
}

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  const std::string translated = pcre2_pattern(pattern);
  int error = 0;
  size_t at = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  code_.reset(pcre2_compile(units(translated), translated.size(), kOptions, &error, &at, nullptr));
  if (!code_)
    fail(ErrorCode::kBadInput, "pattern '{}': {}", printable(pattern, kMaxQuote),
         pcre2_message(error));
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    fail(ErrorCode::kUnsupported, "pattern '{}': it can match the empty string",
         printable(pattern, kMaxQuote));
  }
  // Without JIT (for example no executable memory) the interpreter finds the same matches, slower.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

std::optional<RegexMatch> Regex::find(std::string_view text, size_t from, Scratch& scratch) const {
  const auto match = [&](uint32_t options) {
    return pcre2_match(code_.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK | options,
                       scratch.data_.get(), scratch.context_.get());
  };
  const uint32_t limit = step_limit(text.size());
  int code = PCRE2_ERROR_MATCHLIMIT;
  for (uint64_t steps = kFreeSteps; code == PCRE2_ERROR_MATCHLIMIT; steps *= kGrowth) {
    steps = std::min<uint64_t>(steps, limit);
    if (steps > kFreeSteps) {
      if (steps > scratch.steps_left_) break;
      scratch.steps_left_ -= steps;
    }
    pcre2_set_match_limit(scratch.context_.get(), static_cast<uint32_t>(steps));
    code = match(0);
    // JIT code has a small fixed stack; the interpreter keeps its own on the heap.
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) code = match(PCRE2_NO_JIT);
    if (steps == limit) break;
  }
  if (code == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (code < 0) {
    fail(ErrorCode::kBadInput, "pattern '{}' on {} bytes of text: {}",
         printable(pattern_, kMaxQuote), text.size(), pcre2_message(code));
  }
  const size_t* offsets = pcre2_get_ovector_pointer(scratch.data_.get());
  return RegexMatch{offsets[0], offsets[1]};
}

}  // namespace dsv4
