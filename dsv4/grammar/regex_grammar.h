// Regular expressions: the ECMA syntax without look-around, back-references, word borders and \p,
// over code points (docs/spec/serving.md 3.4). ^ and $ stand for the ends of the text, anywhere.

#pragma once

#include <string_view>

#include "dsv4/grammar/text_set.h"

namespace dsv4 {

// kWhole: the pattern is the whole text. kSearch: it is found somewhere in the text, as JSON Schema
// wants it.
enum class RegexScope { kWhole, kSearch };

// Both throw kBadInput, which names the construct and the byte where it stands.
TextNfa read_regex(std::string_view pattern, RegexScope match);
// The whole text.
NodeId add_regex(AutomatonBuilder& builder, NodeId from, std::string_view pattern, RegexText text);

}  // namespace dsv4
