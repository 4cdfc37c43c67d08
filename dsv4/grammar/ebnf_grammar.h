// Grammars in the form that llama.cpp (GBNF), xgrammar and vLLM read (docs/spec/serving.md 3.4):
//
//   root   ::= "yes" | "no" | number ("," number)*     # the rule `root` is the whole answer
//   number ::= "-"? [0-9]{1,3}
//
// Texts in quotes and sets in brackets have the escapes \n \r \t \\ \" \' \[ \] \- \^ \xHH \uHHHH
// \UHHHHHHHH; `.` is any character. Rules may call themselves, but not before they read something.
// No look-ahead and no semantic actions.

#pragma once

#include <string>
#include <string_view>

#include "dsv4/grammar/automaton.h"

namespace dsv4 {

// Throws kBadInput, which names the line and what is wrong.
Automaton ebnf_grammar(std::string_view text);

// Grammar of a request's field `param`; throws RequestError `unsupported_grammar`.
Automaton ebnf_format_grammar(std::string_view text, const std::string& param);

}  // namespace dsv4
