// The formats of JSON Schema that strings are held to, as regular expressions over whole texts. No
// text that they accept is outside the format; every other format is an annotation.

#pragma once

#include <string_view>
#include <utility>

namespace dsv4 {

#define DSV4_DATE                                                                                 \
  "(?:[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d" \
  "|30)|02-(?:0[1-9]|1\\d|2[0-8]))|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|"  \
  "[13579][26])00)-02-29)"
#define DSV4_TIME \
  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define DSV4_HEX "[0-9a-fA-F]{1,4}"
#define DSV4_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define DSV4_PATH "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define DSV4_CLOCK "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"

#define DSV4_TAIL "(?:\\?(?:" DSV4_PATH "|[/?])*)?(?:#(?:" DSV4_PATH "|[/?])*)?"
#define DSV4_URI                                                                                 \
  "[A-Za-z][A-Za-z0-9+.-]*:(?://[A-Za-z0-9._~-]+(?::\\d{1,5})?(?:/" DSV4_PATH "*)*|/?" DSV4_PATH \
  "+(?:/" DSV4_PATH "*)*)" DSV4_TAIL
// A URI, or a path whose first part has no colon.
#define DSV4_REFERENCE "(?:" DSV4_URI "|/?(?:[A-Za-z0-9._~-]+(?:/" DSV4_PATH "+)*/?)?" DSV4_TAIL ")"

inline constexpr std::pair<std::string_view, std::string_view> kStringFormats[] = {
    {"date", DSV4_DATE},
    {"time", DSV4_TIME},
    {"date-time", DSV4_DATE "T" DSV4_TIME},
    {"duration", "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" DSV4_CLOCK
                 ")?|" DSV4_CLOCK ")"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv4",
     "(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"},
    {"ipv6",
     "(?:" DSV4_HEX ":){7}" DSV4_HEX "|(?:" DSV4_HEX ":){1,7}:|(?:" DSV4_HEX ":){1,6}:" DSV4_HEX
     "|(?:" DSV4_HEX ":){1,5}(?::" DSV4_HEX "){1,2}|(?:" DSV4_HEX ":){1,4}(?::" DSV4_HEX
     "){1,3}|(?:" DSV4_HEX ":){1,3}(?::" DSV4_HEX "){1,4}|(?:" DSV4_HEX ":){1,2}(?::" DSV4_HEX
     "){1,5}|" DSV4_HEX ":(?::" DSV4_HEX "){1,6}|:(?:(?::" DSV4_HEX "){1,7}|:)"},
    {"email",
     "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30})?@" DSV4_LABEL
     "(?:\\." DSV4_LABEL "){1,3}"},
    {"hostname", DSV4_LABEL "(?:\\." DSV4_LABEL "){0,3}"},
    {"uri", DSV4_URI},
    {"iri", DSV4_URI},
    {"uri-reference", DSV4_REFERENCE},
    {"iri-reference", DSV4_REFERENCE},
    {"uri-template", "(?:" DSV4_PATH "|[/?#]|\\{[A-Za-z0-9_]+(?:,[A-Za-z0-9_]+)*\\})*"},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)"},
    // Patterns without groups, classes and counts, which every reader of patterns knows.
    {"regex", "\\^?(?:(?:[^\\\\()\\[\\]{}*+?|^$]|\\\\[dwsDWS.\\\\/()\\[\\]{}*+?|^$-])[*+?]?)*\\$?"},
};

#undef DSV4_DATE
#undef DSV4_TIME
#undef DSV4_HEX
#undef DSV4_LABEL
#undef DSV4_PATH
#undef DSV4_CLOCK
#undef DSV4_TAIL
#undef DSV4_URI
#undef DSV4_REFERENCE

// Empty: the format is an annotation.
constexpr std::string_view string_format(std::string_view name) {
  for (const auto& [known, regex] : kStringFormats)
    if (known == name) return regex;
  return {};
}

}  // namespace dsv4
