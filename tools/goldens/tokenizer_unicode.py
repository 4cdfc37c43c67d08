#!/usr/bin/env python3
"""Writes dsv4/text/unicode_additions.h: code points whose class the `tokenizers` package (Oniguruma) knows
and Unicode 14 does not. Unicode 14 is that of PCRE2 10.42 and of Python 3.11's unicodedata.

    python3 tools/goldens/tokenizer_unicode.py > dsv4/text/unicode_additions.h
"""

import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

HEADER = """\
// Code points that got their general category after Unicode 14 and by Unicode 16, as first..last.
// The patterns of tokenizer.json mean Unicode 16, PCRE2 10.42 knows 14; a newer PCRE2 loses nothing by them.
//
// Written by tools/goldens/tokenizer_unicode.py; not to be edited by hand.

#pragma once

namespace dsv4 {

struct UnicodeAddition {
  char category;  // L M N P S
  char32_t first, last;
};

// clang-format off
inline constexpr UnicodeAddition kUnicodeAdditions[] = {
"""

FOOTER = """\
};
// clang-format on

}  // namespace dsv4
"""


def scalars():
    return (c for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def members(category):
    """The package's \\p{category}: what a Split that removes matches leaves nothing of."""
    split = pre_tokenizers.Split(Regex(r"\p{%s}" % category), "removed")
    return {c for c in scalars() if not split.pre_tokenize_str(chr(c))}


def ranges(code_points):
    found = []
    for c in sorted(code_points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def main():
    assert unicodedata.unidata_version == "14.0.0", "needs the Unicode version of the oldest PCRE2 in use"
    sys.stdout.write(HEADER)
    for category in "LMNPS":
        ours = {c for c in scalars() if unicodedata.category(chr(c))[0] == category}
        theirs = members(category)
        assert ours <= theirs, "a code point changed its category: ranges alone cannot bridge that"
        items = [f"{{'{category}', 0x{a:x}, 0x{b:x}}}," for a, b in ranges(theirs - ours)]
        for i in range(0, len(items), 3):
            sys.stdout.write("    " + " ".join(items[i : i + 3]) + "\n")
    sys.stdout.write(FOOTER)


if __name__ == "__main__":
    main()
