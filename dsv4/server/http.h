// HTTP as the rest of the server sees it: a request with its body, and an Exchange through which
// one request is answered, whole or as a stream. http_server.h implements it over sockets.
//
// Everything here runs on the I/O thread unless a comment says otherwise.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/base/ascii.h"

namespace dsv4 {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// What a body takes of the memory that all bodies share, from its arrival until it is dropped. Any
// thread may destroy it.
class BodyShare {
 public:
  using Total = std::atomic<size_t>;  // bytes of all bodies

  BodyShare(std::shared_ptr<Total> total, size_t most) : total_(std::move(total)), most_(most) {}
  ~BodyShare() { *total_ -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  // False where all bodies would have more than `most` bytes.
  bool grow_to(size_t bytes);

 private:
  const std::shared_ptr<Total> total_;
  const size_t most_;
  size_t bytes_ = 0;
};

struct HttpRequest {
  std::string method, path, query;  // path: before the '?', still percent-encoded
  HttpHeaders headers;              // names in lower case
  std::string body;
  std::string peer;                  // address of the client
  bool admin = false;                // came through the admin port
  bool proxied = false;              // came through a trusted proxy
  std::shared_ptr<BodyShare> share;  // the body's; null without a body

  // Empty where the header is absent.
  std::string_view header(std::string_view lower_case_name) const;
  void drop_body();
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string content_type = "application/json";
  std::string body;
};

// One request and its answer: respond() once, or begin_stream(), write() and end_stream().
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual HttpRequest& request() = 0;
  virtual void respond(HttpResponse response) = 0;
  // The head of a stream; `head.body` is its first piece.
  virtual void begin_stream(HttpResponse head) = 0;
  // Leaves when the I/O thread has run what it is running, so that many writes are one packet.
  virtual void write(std::string_view piece) = 0;
  virtual void end_stream() = 0;
  // Closes the connection at once; on_gone is not called.
  virtual void abort() = 0;

  // Called once when the client has left before the answer was complete.
  std::function<void()> on_gone;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Before the body is read; an answer ends the request.
  virtual std::optional<HttpResponse> check(const HttpRequest& head) = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // What left a handler or posted work as an exception; the server goes on.
  virtual void caught(const std::exception& exception) = 0;
  // An error below the handler: a malformed request, a body that is too large, too many
  // connections. `head` has what was read of the request.
  virtual HttpResponse error(const HttpRequest& head, int status, const std::string& message) = 0;
};

// Where work runs. Any thread may call post_io and post_worker.
class HttpThreads {
 public:
  virtual ~HttpThreads() = default;
  virtual void post_io(std::function<void()> work) = 0;
  virtual void post_worker(std::function<void()> work) = 0;
};

// "Bad Request"
std::string_view reason_phrase(int status);

// "%2F" and the like decoded; nothing where an escape is malformed.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace dsv4
