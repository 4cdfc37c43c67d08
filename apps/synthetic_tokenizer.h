// A tokenizer.json for a server of a model with random weights (apps/synthetic_model.h), whose
// answers are ids drawn from the whole
// vocabulary. It is made of a smaller one, so that every id has a text:
//
//   0 .. n - 1         the smaller vocabulary
//   n .. v - a - 1     words of two of its words each ("sun" + "der"), and the merges to them
//   v - a .. v - 1     its a added tokens that are not in the vocabulary itself
//
// Texts have fewer tokens than the smaller tokenizer gives them. What a released tokenizer would
// make of them is another matter: a measurement gives its prompts as ids, or counts by the server's
// usage.

#pragma once

#include <cstdint>
#include <string>

namespace dsv4::apps {

// json: the smaller tokenizer.json, a byte-level BPE whose vocabulary has words of lower-case
// letters. Pairs of them fill the rest of the result: the 700 words of the demo suffice for 490,000
// tokens.
// vocab: tokens of the result. Throws Error where the words do not suffice for them.
std::string widened_tokenizer(const std::string& json, int64_t vocab);

}  // namespace dsv4::apps
