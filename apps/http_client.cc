#include "apps/http_client.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using asio::ip::tcp;

constexpr std::chrono::milliseconds kPoll{50};  // how often `stopped` is asked
constexpr std::chrono::seconds kConnect{10};
constexpr std::chrono::seconds kSilence{600};  // a long prompt is computed before the first byte
constexpr size_t kMaxBody = size_t{1} << 20;

struct Stopped {};

// Runs asynchronous operations one at a time, so that each can be stopped.
class Steps {
 public:
  Steps(const HttpUrl& url, const HttpCall& call) : url_(url), call_(call), socket_(io_) {}

  asio::io_context& io() { return io_; }
  tcp::socket& socket() { return socket_; }

  // Waits for what `start(handler)` begins. Throws Stopped, or kIo "cannot WHAT URL: ...", but
  // returns the errors that are an end: of the stream, or of the buffer.
  template <class Start>
  error_code run(const char* what, std::chrono::seconds limit, Start start) {
    if (call_.stopped && call_.stopped()) throw Stopped();
    std::optional<error_code> result;
    start([&result](error_code error, auto&&...) { result = error; });
    const auto deadline = Clock::now() + limit;
    bool stopped = false, late = false;
    while (!result) {
      io_.restart();
      io_.run_for(kPoll);
      if (result || stopped || late) continue;
      stopped = call_.stopped && call_.stopped();
      late = Clock::now() > deadline;
      error_code ignored;
      if (stopped || late) socket_.close(ignored);  // which ends the operation
    }
    if (stopped) throw Stopped();
    if (late) fail(ErrorCode::kIo, "cannot {} {}: no answer", what, url_.text());
    const bool end = *result == asio::error::eof || *result == http::error::end_of_stream ||
                     *result == http::error::partial_message ||
                     *result == asio::ssl::error::stream_truncated ||
                     *result == http::error::need_buffer;
    if (*result && !end)
      fail(ErrorCode::kIo, "cannot {} {}: {}", what, url_.text(), result->message());
    return *result;
  }

 private:
  const HttpUrl& url_;
  const HttpCall& call_;
  asio::io_context io_;
  tcp::socket socket_;
};

void open_connection(Steps& steps, const HttpUrl& url) {
  tcp::resolver resolver(steps.io());
  tcp::resolver::results_type found;
  steps.run("find", kConnect, [&](auto done) {
    resolver.async_resolve(url.host, url.port, [&found, done](error_code error, auto results) {
      found = std::move(results);
      done(error);
    });
  });
  steps.run("connect to", kConnect,
            [&](auto done) { asio::async_connect(steps.socket(), found, done); });
}

http::request<http::string_body> request_of(const HttpUrl& url, const HttpCall& call) {
  http::request<http::string_body> request(call.body.empty() ? http::verb::get : http::verb::post,
                                           url.path + call.path, 11);
  const bool default_port = url.port == (url.tls ? "443" : "80");
  request.set(http::field::host, default_port ? url.host : url.host + ":" + url.port);
  request.set(http::field::connection, "close");
  request.set(http::field::accept, "application/json, text/event-stream");
  if (!call.body.empty()) request.set(http::field::content_type, "application/json");
  for (const auto& [name, value] : call.headers) request.set(name, value);
  request.body() = call.body;
  request.prepare_payload();
  return request;
}

// `stream`: of bytes, connected.
template <class Stream>
HttpReply converse(Steps& steps, Stream& stream, const HttpUrl& url, const HttpCall& call) {
  const auto request = request_of(url, call);
  steps.run("write to", kSilence,
            [&](auto done) { http::async_write(stream, request, std::move(done)); });
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  steps.run("read from", kSilence,
            [&](auto done) { http::async_read_header(stream, buffer, parser, std::move(done)); });
  if (!parser.is_header_done())
    fail(ErrorCode::kIo, "cannot read from {}: it closed the connection", url.text());
  HttpReply reply{.status = static_cast<int>(parser.get().result_int())};
  char bytes[16 << 10];
  while (!parser.is_done()) {
    parser.get().body().data = bytes;
    parser.get().body().size = sizeof bytes;
    const error_code end = steps.run("read from", kSilence, [&](auto done) {
      http::async_read_some(stream, buffer, parser, std::move(done));
    });
    const std::string_view piece(bytes, sizeof bytes - parser.get().body().size);
    if (reply.status == 200 && call.on_piece) {
      if (!piece.empty()) call.on_piece(piece);
    } else {
      reply.body += piece.substr(0, kMaxBody - std::min(kMaxBody, reply.body.size()));
    }
    if (end && end != http::error::need_buffer && !parser.is_done())
      fail(ErrorCode::kIo, "{} closed the connection before its answer was complete", url.text());
  }
  return reply;
}

HttpReply call_over_tls(Steps& steps, const HttpUrl& url, const HttpCall& call) {
  asio::ssl::context context(asio::ssl::context::tls_client);
  context.set_default_verify_paths();
  asio::ssl::stream<tcp::socket&> stream(steps.socket(), context);
  stream.set_verify_mode(asio::ssl::verify_peer);
  stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
  SSL_set_tlsext_host_name(stream.native_handle(), url.host.c_str());
  steps.run("speak TLS with", kConnect, [&](auto done) {
    stream.async_handshake(asio::ssl::stream_base::client, std::move(done));
  });
  return converse(steps, stream, url, call);
}

}  // namespace

std::string HttpUrl::text() const {
  const bool v6 = host.find(':') != host.npos;
  return fmt::format("{}://{}:{}{}", tls ? "https" : "http", v6 ? "[" + host + "]" : host, port,
                     path);
}

HttpUrl parse_http_url(const std::string& url) {
  const auto bad = [&] {
    fail(ErrorCode::kBadInput, "'{}': want http://HOST[:PORT] or https://HOST[:PORT]",
         quotable(url));
  };
  HttpUrl out;
  const size_t scheme = url.find("://");
  if (scheme == url.npos) bad();
  out.tls = url.compare(0, scheme, "https") == 0;
  if (!out.tls && url.compare(0, scheme, "http") != 0) bad();
  const size_t begin = scheme + 3, end = std::min(url.find('/', begin), url.size());
  const std::string authority = url.substr(begin, end - begin);
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : authority.npos;
  const size_t colon = authority.find(':', bracket == authority.npos ? 0 : bracket);
  out.host =
      bracket == authority.npos ? authority.substr(0, colon) : authority.substr(1, bracket - 1);
  out.port = colon == authority.npos ? (out.tls ? "443" : "80") : authority.substr(colon + 1);
  out.path = url.substr(end);
  while (out.path.ends_with('/')) out.path.pop_back();
  const auto plain = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c != 0x7f; });
  };
  const bool digits = !out.port.empty() && out.port.size() <= 5 &&
                      out.port.find_first_not_of("0123456789") == out.port.npos;
  if (out.host.empty() || !digits || !plain(url)) bad();
  return out;
}

HttpReply call(const HttpUrl& url, const HttpCall& call) {
  Steps steps(url, call);
  try {
    open_connection(steps, url);
    return url.tls ? call_over_tls(steps, url, call) : converse(steps, steps.socket(), url, call);
  } catch (const Stopped&) {
    return {.stopped = true};
  }
}

}  // namespace dsv4::apps
