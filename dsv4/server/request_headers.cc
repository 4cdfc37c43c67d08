#include "dsv4/server/request_headers.h"

#include <algorithm>

#include "dsv4/base/ascii.h"
#include "dsv4/base/error.h"
#include "dsv4/server/server_log.h"

namespace dsv4 {
namespace {

bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == text.npos;
}

}  // namespace

bool is_request_id(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_.:/+=@").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kMaxRequestId && std::ranges::all_of(text, allowed);
}

std::string client_request_id(const HttpRequest& request) {
  const std::string_view text = request.header("x-request-id");
  return is_request_id(text) ? std::string(text) : "";
}

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  constexpr size_t kSize = 2 + 1 + 32 + 1 + 16 + 1 + 2;
  if (header.size() < kSize) return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         span = header.substr(36, 16), flags = header.substr(53, 2);
  const bool dashes = header[2] == '-' && header[35] == '-' && header[52] == '-';
  if (!dashes || !is_lower_hex(version) || !is_lower_hex(trace) || !is_lower_hex(span) ||
      !is_lower_hex(flags))
    return std::nullopt;
  // A later version may add fields.
  const bool whole = header.size() == kSize || (version != "00" && header[kSize] == '-');
  if (version == "ff" || !whole || is_zero(trace) || is_zero(span)) return std::nullopt;
  const char last = flags[1];
  const int bits = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceContext{
      .trace_id = std::string(trace), .span_id = std::string(span), .sampled = (bits & 1) != 0};
}

std::string wrong_encoding(const HttpRequest& head) {
  const std::string type = lower_case(head.header("content-type"));
  if (!type.empty() && type.find("json") == type.npos) return "want Content-Type: application/json";
  constexpr std::string_view kCharset = "charset=";
  if (const size_t at = type.find(kCharset); at != type.npos) {
    std::string charset = type.substr(at + kCharset.size());
    charset.resize(std::min(charset.find(';'), charset.size()));
    std::erase_if(charset, [](char c) { return c == '"' || c == ' '; });
    if (charset != "utf-8" && charset != "utf8" && charset != "us-ascii")
      return fmt::format("bodies are UTF-8, not '{}'", short_text(charset));
  }
  const std::string encoding = lower_case(head.header("content-encoding"));
  if (encoding.empty() || encoding == "identity") return "";
  return fmt::format("Content-Encoding '{}' is not read: send the body as it is",
                     short_text(encoding));
}

}  // namespace dsv4
