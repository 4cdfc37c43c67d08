// What the server knows of a model besides its engine. Constant once it serves, except the replay
// map and the grammars, which may be used by every thread.

#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/chat/markers.h"
#include "dsv4/chat/replay_map.h"
#include "dsv4/chat/request.h"
#include "dsv4/ops/model/sample/sample.h"
#include "dsv4/server/engine_port.h"
#include "dsv4/server/grammars.h"
#include "dsv4/text/text_encoder.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4 {

struct ServedModel {
  explicit ServedModel(std::shared_ptr<const Tokenizer> t)
      : tokenizer(std::move(t)),
        text(tokenizer->text_encoder()),
        markers(*tokenizer),
        grammars(tokenizer, markers) {}

  // At least so many tokens, whatever the text says.
  size_t least_tokens(size_t bytes) const { return (bytes + longest_token_ - 1) / longest_token_; }
  // A model may have more ids than its tokenizer. Those have no text, and no client may name them.
  int32_t text_ids() const { return std::min(limits.vocab_size, tokenizer->vocab_size()); }

  std::shared_ptr<const Tokenizer> tokenizer;
  const TextEncoder& text;  // the tokenizer's
  MarkerIds markers;
  std::vector<std::string> names;  // that requests may use; the first is the model's own
  bool any_name = false;           // every name is this model's
  ChatOptions chat;
  SamplingParams sampling;  // where a request says nothing
  EngineLimits limits;
  int64_t created = 0;           // Unix time of the start
  bool strict_fields = false;    // unknown fields are an error, not a warning
  bool reasoning_alias = false;  // `reasoning` beside `reasoning_content`
  ToolGrammar tool_grammar = ToolGrammar::kStrict;
  bool tool_coerce = false;  // arguments of calls become the types that the schemas declare
  mutable ReplayMap replay;
  mutable Grammars grammars;

 private:
  static size_t longest_token(const Tokenizer& tokenizer) {
    size_t longest = 1;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
      longest = std::max(longest, tokenizer.token_bytes(id).size());
    return longest;
  }
  const size_t longest_token_ = longest_token(*tokenizer);  // bytes
};

}  // namespace dsv4
