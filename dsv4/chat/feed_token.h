// From a token of the model to the parser of its output: a marker, or bytes.

#pragma once

#include "dsv4/chat/markers.h"
#include "dsv4/chat/output_parser.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4 {

// A model may have more ids than its tokenizer: those have no text.
inline void feed_token(OutputParser& parser, int32_t id, const Tokenizer& tokenizer,
                       const MarkerIds& markers) {
  if (const auto marker = markers.marker(id)) {
    parser.marker(*marker);
  } else if (id < tokenizer.vocab_size()) {
    parser.text(tokenizer.token_bytes(id));
  }
}

}  // namespace dsv4
