#include "dsv4/server/http_head.h"

#include <fmt/format.h>

#include <algorithm>

#include "dsv4/server/http.h"

namespace dsv4 {
namespace {

constexpr std::string_view kEnd = "\r\n\r\n";

bool is_token_char(char c) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         kOthers.find(c) != kOthers.npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

HeadError bad(std::string message) {
  return {400, std::move(message)};
}

// METHOD SP target SP HTTP/1.x, with exactly one space between.
std::optional<HeadError> check_request_line(std::string_view line) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || first == last) return bad("malformed request line");
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(method)) return bad("malformed method");
  const bool printable = std::all_of(target.begin(), target.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
  if (!printable || !split_target(target)) return bad("the request target must be a path");
  if (!version.starts_with("HTTP/")) return bad("malformed request line");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return HeadError{505, "only HTTP/1.1 and HTTP/1.0 are served"};
  return std::nullopt;
}

// What decides where the request ends.
struct Framing {
  int lengths = 0, encodings = 0, hosts = 0;
};

std::optional<HeadError> check_header_line(std::string_view line, Framing& framing) {
  if (line[0] == ' ' || line[0] == '\t') return bad("folded header lines are not accepted");
  const size_t colon = line.find(':');
  if (colon == line.npos) return bad("header line without a colon");
  const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
  if (!is_token(name)) return bad("malformed header name");
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) return bad("control byte in a header");
  }
  if (lower_case(name) == "content-length") {
    ++framing.lengths;
    const bool digits =
        !value.empty() && value.size() <= 18 &&
        std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) return bad("malformed Content-Length");
  } else if (lower_case(name) == "transfer-encoding") {
    ++framing.encodings;
    if (lower_case(value) != "chunked") return bad("the only transfer encoding is chunked");
  } else if (lower_case(name) == "host") {
    ++framing.hosts;
  }
  return std::nullopt;
}

}  // namespace

std::optional<RequestTarget> split_target(std::string_view target) {
  if (target.starts_with("/")) return RequestTarget{{}, target};
  const std::string scheme = lower_case(target.substr(0, target.find("://")));
  if (scheme != "http" && scheme != "https") return std::nullopt;
  const std::string_view rest = target.substr(std::min(scheme.size() + 3, target.size()));
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view authority = rest.substr(0, slash);
  if (authority.empty() || authority.find_first_of("@?#") != authority.npos) return std::nullopt;
  return RequestTarget{authority, slash == rest.size() ? "/" : rest.substr(slash)};
}

size_t head_size(std::string_view bytes) {
  const size_t end = bytes.find(kEnd);
  return end == bytes.npos ? 0 : end + kEnd.size();
}

std::optional<HeadError> check_partial_head(std::string_view bytes, const HeadLimits& limits) {
  const size_t line_end = bytes.find('\n');
  if (std::min(line_end, bytes.size()) > limits.request_line)
    return HeadError{414, fmt::format("the request line exceeds {} bytes", limits.request_line)};
  if (bytes.size() > limits.total)
    return HeadError{431, fmt::format("the headers exceed {} bytes", limits.total)};
  // A bare LF would otherwise let the client wait for an end that it thinks it has sent.
  for (size_t at = line_end; at != bytes.npos; at = bytes.find('\n', at + 1)) {
    if (at == 0 || bytes[at - 1] != '\r') return bad("line ends with a bare LF");
  }
  return std::nullopt;
}

std::optional<HeadError> check_head(std::string_view head, const HeadLimits& limits) {
  if (auto error = check_partial_head(head, limits)) return error;
  head.remove_suffix(2);  // the blank line
  const size_t first_end = head.find("\r\n");
  const std::string_view request_line = head.substr(0, first_end);
  if (request_line.find('\r') != request_line.npos) return bad("bare CR in the request line");
  if (auto error = check_request_line(request_line)) return error;
  head.remove_prefix(first_end + 2);
  Framing framing;
  size_t count = 0;
  while (!head.empty()) {
    const size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (line.size() > limits.header_line)
      return HeadError{431, fmt::format("a header exceeds {} bytes", limits.header_line)};
    if (++count > limits.header_count)
      return HeadError{431, fmt::format("more than {} headers", limits.header_count)};
    if (auto error = check_header_line(line, framing)) return error;
  }
  if (framing.lengths > 1) return bad("more than one Content-Length");
  if (framing.encodings > 1) return bad("more than one Transfer-Encoding");
  if (framing.lengths + framing.encodings > 1)
    return bad("both Content-Length and Transfer-Encoding");
  if (framing.hosts > 1) return bad("more than one Host");
  if (framing.hosts == 0 && request_line.ends_with("1.1")) return bad("no Host header");
  if (framing.encodings == 1 && request_line.ends_with("1.0"))
    return bad("Transfer-Encoding in an HTTP/1.0 request");
  return std::nullopt;
}

}  // namespace dsv4
