// Recall by distance: a fact is stated, other text follows, and a question requests the fact.
//
//   BOS [a line] fact | filler and other facts | question -> answer
//                   ^value ends              ^  distance tokens from here to the answer's first
//
// The prompts of a seed are the same on every machine. Their wording comes from a template:
// needle.json in a model's folder (docs/quality.md), or a built-in one in plain English.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/text/tokenizer.h"

namespace dsv4 {

// A kind of fact. {key} and {value} are replaced with words of the lists; fact has both, question
// has the key, answer the value.
struct NeedleFacts {
  std::string fact, question, answer;
  std::vector<std::string> keys, values;
};

struct NeedleTemplate {
  std::vector<NeedleFacts> facts;   // one of them is drawn for every fact of a prompt
  std::vector<std::string> filler;  // lines, drawn with repetition
  int64_t distractors = 0;  // other facts between fact and question; at most one per 100 tokens
};

// Throws kBadInput naming `what` and the key.
NeedleTemplate parse_needle_template(std::string_view json, const std::string& what);
const NeedleTemplate& default_needle_template();

struct NeedlePrompt {
  std::vector<int32_t> ids;
  std::string answer;
  int64_t answer_tokens = 0;
};

// Throws kBadInput when the question alone is longer than `distance`. bos: -1 for none.
NeedlePrompt make_needle(const NeedleTemplate& form, const Tokenizer& tokenizer, int32_t bos,
                         int64_t distance, uint64_t seed);

// True when the reply begins with the answer, ignoring leading white space, and the answer's last
// word ends there: 12 is not 123.
bool is_right(std::string_view reply, std::string_view answer);

}  // namespace dsv4
