// A client of HTTP/1.1 servers, for `dsv4 chat --url`: one call on a connection of its own, whose
// answer arrives piece by piece. https wants a certificate that the system's store verifies.
//
// No proxies, no redirects, no connection that is kept.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsv4::apps {

struct HttpUrl {
  bool tls = false;
  std::string host, port, path;  // path: without a '/' at its end

  std::string text() const;  // as a user would write it
};

// "http[s]://HOST[:PORT][/PATH]"; "[::1]" is a host. Throws kBadInput.
HttpUrl parse_http_url(const std::string& url);

struct HttpCall {
  std::string path;  // after that of the URL
  std::string body;  // empty: GET, otherwise POST of JSON
  std::vector<std::pair<std::string, std::string>> headers;
  // The body of an answer with status 200, as it arrives; null: the reply has it.
  std::function<void(std::string_view)> on_piece;
  // Asked at every piece and twenty times a second; true ends the call. Null: it goes on.
  std::function<bool()> stopped;
};

struct HttpReply {
  int status = 0;
  std::string body;  // what on_piece did not get, at most 1 MiB
  bool stopped = false;
};

// Throws kIo where there is no whole answer.
HttpReply call(const HttpUrl& url, const HttpCall& call);

}  // namespace dsv4::apps
