// The regular expressions of tokenizer.json are written for Oniguruma (Ruby syntax, Unicode 16),
// which the `tokenizers` package uses; we match with PCRE2. The same text means different things to
// the two in places, so a pattern is translated and whatever has no certain equal is refused by
// name.
//
// Known differences that are bridged: PCRE2's \s holds U+180E, Oniguruma's does not; PCRE2 10.42
// knows Unicode 14, so \p{L} and the like get the code points assigned since (unicode_additions.h).

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

// Throws kUnsupported and names the construct. `pattern` is valid UTF-8.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace dsv4
