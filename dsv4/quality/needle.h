// Recall by distance: a fact is stated, text follows, and the fact is asked for.
//
//   BOS [a line] fact | filler and other facts | question -> answer
//                   ^value ends              ^  distance tokens from here to the answer's first
//
// The prompts of one seed are the same on every machine. What they look like comes from a template,
// needle.json in a model's folder (docs/quality.md), or from a built-in one in plain English.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/text/tokenizer.h"

namespace dsv4 {

// One family of facts. {key} and {value} stand for words of the lists; fact has both, question has
// the key, answer the value.
struct NeedleFacts {
  std::string fact, question, answer;
  std::vector<std::string> keys, values;
};

struct NeedleTemplate {
  std::vector<NeedleFacts> facts;   // one is drawn for every fact of a prompt
  std::vector<std::string> filler;  // lines, drawn with repetition
  int64_t distractors = 0;          // other facts in between; at most one per 100 tokens
};

// Throws kBadInput that names `what` and the key.
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

// The reply begins with the answer, white space in front of either aside, and the answer's last
// word does not go on: 12 is not 123.
bool is_right(std::string_view reply, std::string_view answer);

}  // namespace dsv4
