// Log probabilities of tokens as JSON, for the APIs that give them.

#pragma once

#include <string>

#include "dsv4/server/answer.h"
#include "dsv4/server/json_text.h"

namespace dsv4 {

// A token that is no whole UTF-8 is written as its bytes, `\xe5`.
std::string token_text(const std::string& bytes);

// {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}
Json logprob_json(const TokenLogprob& token);

}  // namespace dsv4
