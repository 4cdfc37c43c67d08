// Headers that say what a request is called, which trace it belongs to, and how its body is
// written.
//
//   X-Request-Id   the client's name of the request, which its answer, the log and the traces keep
//   traceparent    of W3C Trace Context: the trace, and the span of it that called
//
//   00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//   version, trace, span, flags; flag 1: the caller records the trace

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dsv4/server/http.h"

namespace dsv4 {

inline constexpr size_t kMaxRequestId = 128;  // bytes

// 1 to kMaxRequestId letters, digits and "-_.:/+=@". Anything else counts as no name, so that none
// can break a header or a line of the log.
bool is_request_id(std::string_view text);
// The client's, or nothing where it gave none that is valid.
std::string client_request_id(const HttpRequest& request);

struct TraceContext {
  std::string trace_id, span_id;  // 32 and 16 hexadecimal digits
  bool sampled = false;

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// Nothing where the header is absent or malformed: then the request begins a trace of its own.
std::optional<TraceContext> parse_traceparent(std::string_view header);

// What is wrong with how the body is written, by Content-Type and Content-Encoding; empty: nothing.
std::string wrong_encoding(const HttpRequest& head);

}  // namespace dsv4
