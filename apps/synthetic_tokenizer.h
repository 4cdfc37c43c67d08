// A tokenizer for a server of a model with random weights, whose ids are drawn from the whole
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

// json: the smaller tokenizer.json, whose words are few enough that there are pairs for the rest of
// the vocabulary and many enough that they do not run out; the demo's 700 words give 490,000.
// vocab: tokens of the result. Throws where the words do not suffice.
std::string widened_tokenizer(const std::string& json, int64_t vocab);

}  // namespace dsv4::apps
