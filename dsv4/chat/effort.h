// Reasoning effort: which text a requested effort puts before the system text
// (docs/spec/serving.md 1.2), and how long an answer may get.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dsv4/chat/json_value.h"

namespace dsv4 {

// Two generations of the released encoder give the same words different texts.
enum class EffortProfile { kOfficial, kPreview };
const char* name(EffortProfile profile);

// What a request says; kNone wants no thinking, where nothing else says whether to think.
enum class Effort { kAbsent, kNone, kMinimal, kLow, kMedium, kHigh, kXHigh, kMax, kUltra };

// Nothing where the word is no effort.
std::optional<Effort> effort_of(std::string_view word);

// Empty for no text.
std::string_view effort_text(EffortProfile profile, Effort effort);

// Profile of a model folder: `encoder` is its encoding/encoding_dsv4.py, `config` its config.json;
// either may be missing.
EffortProfile detect_effort_profile(const std::optional<std::string>& encoder,
                                    const std::optional<JsonValue>& config);

// Tokens of output, reasoning included, where the client names no limit; the context may be less.
int64_t default_max_tokens(bool thinking, Effort effort);
// top_p where the client names none.
double default_top_p(bool thinking, bool has_tools);

}  // namespace dsv4
