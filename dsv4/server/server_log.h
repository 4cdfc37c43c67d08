// Log lines of the server: one JSON object each on standard error. No prompt, no answer, no key;
// texts from clients are cut to 64 bytes.
//
// A log never blocks the server: a line that standard error does not take at once is lost, because
// the reader of a pipe stalls or has left. The next line that is written follows one that says how
// many were lost: {"event": "log_lost", "lines": N}. A process that writes to pipes ignores
// SIGPIPE.

#pragma once

#include <cstdint>
#include <string>

#include "dsv4/server/json_text.h"

namespace dsv4 {

// {"time": "...", "event": EVENT, ...fields}, at most 4096 bytes. Any thread may call it.
void log_line(const char* event, const Json& fields);

// Since the start of the process.
int64_t log_lines_lost();

// Valid UTF-8 of at most 64 bytes without control bytes.
std::string short_text(const std::string& text);

// Seconds since 1970 as APIs write a time: "2026-11-24T17:35:38Z".
std::string utc_text(int64_t seconds);

}  // namespace dsv4
