// Log lines of the server: one JSON object each on standard error. No prompt, no answer, no key;
// texts from clients are cut to 64 bytes.

#pragma once

#include <string>

#include "dsv4/server/json_text.h"

namespace dsv4 {

// {"time": "...", "event": EVENT, ...fields}. Any thread may call it.
void log_line(const char* event, const Json& fields);

// Valid UTF-8 of at most 64 bytes without control bytes.
std::string short_text(const std::string& text);

}  // namespace dsv4
