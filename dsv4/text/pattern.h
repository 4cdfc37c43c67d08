// The regular expressions of tokenizer.json are written for Oniguruma (Ruby syntax, Unicode 16),
// which the `tokenizers` package uses; we match with PCRE2. Some constructs mean different things
// in the two, so a pattern is translated, and a construct without a certain equivalent is rejected
// by name.
//
// Known differences that the translation handles: PCRE2's \s includes U+180E, Oniguruma's does not;
// PCRE2 10.42 implements Unicode 14, so \p{L} and the like are extended by the code points assigned
// since (unicode_additions.h).

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

// Throws kUnsupported and names the construct. `pattern` is valid UTF-8.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace dsv4
