// Regular expressions as automata: the ECMA syntax without look-around, back-references, word
// borders and \p, over code points, anchored at both ends (docs/spec/serving.md 3.4).

#pragma once

#include <string_view>

#include "dsv4/grammar/automaton.h"

namespace dsv4 {

enum class RegexText { kRaw, kInsideJsonString };

// Throws kBadInput, which names the construct and the byte where it stands.
NodeId add_regex(AutomatonBuilder& builder, NodeId from, std::string_view pattern, RegexText text);

}  // namespace dsv4
