// Asio moves the bytes, Beast's parser finds bodies and chunks; the head is checked before by
// http_head.h. A connection waits until its socket is readable and then reads into a buffer that
// all share, so that an idle connection costs little and a client that leaves is noticed while its
// answer is computed.

#include "dsv4/server/http_connection.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <boost/beast/http/error.hpp>

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxChunkExtension = 256;
constexpr milliseconds kLinger{2000};  // how long an error waits for the client to read it
constexpr milliseconds kReservedTimeout{2000};

// Without line breaks, which would end a header.
std::string header_value(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = ' ';
  }
  return text;
}

// One request of a connection. After the connection is gone its calls do nothing.
class ConnectionExchange : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}

  HttpRequest& request() override { return request_; }
  void respond(HttpResponse response) override {
    if (streaming_) return abort();  // too late for another head
    if (const auto connection = take()) {
      connection->send(std::move(response), false);
      connection->finish_answer();
    }
  }
  void begin_stream(HttpResponse head) override {
    streaming_ = true;
    if (const auto connection = connection_.lock(); connection && !ended_)
      connection->send(std::move(head), true);
  }
  void write(std::string_view piece) override {
    if (const auto connection = connection_.lock(); connection && !ended_)
      connection->send_piece(piece);
  }
  void end_stream() override {
    if (const auto connection = take()) connection->finish_answer();
  }
  void abort() override {
    on_gone = nullptr;
    if (const auto connection = take()) connection->close();
  }

 private:
  std::shared_ptr<Connection> take() {
    if (std::exchange(ended_, true)) return nullptr;
    on_gone = nullptr;
    return connection_.lock();
  }

  std::weak_ptr<Connection> connection_;
  HttpRequest request_;
  bool streaming_ = false, ended_ = false;
};

}  // namespace

void Connection::start() {
  set_deadline(reserved_ ? kReservedTimeout : server_.options.head_timeout);
  wait_readable();
}

void Connection::turn_away(const std::string& answer) {
  error_code ignored;
  socket_.write_some(asio::buffer(answer), ignored);
  linger();
}

void Connection::wait_readable() {
  if (waiting_ || state_ == State::kClosed) return;
  waiting_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    self->waiting_ = false;
    if (error) return self->client_left();
    self->on_readable();
  });
}

void Connection::on_readable() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kAnswering) return peek();
  error_code error;
  const size_t size = socket_.read_some(asio::buffer(server_.read_buffer), error);
  if (error == asio::error::would_block) return wait_readable();
  if (error) return close();
  if (state_ == State::kLinger) return wait_readable();
  if (in_.empty() && state_ == State::kHead && !first_request_)
    set_deadline(server_.options.head_timeout);
  in_.append(server_.read_buffer.data(), size);
  advance();
}

// While an answer is computed: is the client still there? Pipelined bytes stay in the socket, where
// they hide the end of the stream from a read: check_deadlines() then polls for it.
void Connection::peek() {
  char byte;
  error_code error;
  socket_.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
  if (error == asio::error::would_block) return wait_readable();
  if (error) client_left();
}

bool Connection::closed_by_client() {
  pollfd socket{socket_.native_handle(), POLLRDHUP, 0};
  return poll(&socket, 1, 0) == 1;
}

void Connection::advance() {
  for (;;) {
    if (state_ == State::kHead && !read_head()) break;
    if (state_ == State::kBody && !read_body()) break;
    if (state_ != State::kHead && state_ != State::kBody) break;
  }
  if (state_ != State::kClosed) wait_readable();
}

// Both return true where the state has changed.
bool Connection::read_head() {
  constexpr int kMostBlankLines = 2;  // RFC 9112, 2.2
  constexpr char kTlsHandshake = 0x16;
  for (; in_.starts_with("\r\n") && blank_lines_ < kMostBlankLines; ++blank_lines_) in_.erase(0, 2);
  if (first_request_ && in_.starts_with(kTlsHandshake)) {
    ++server_.counters.tls_hellos;
    fail_request(400, "this port speaks HTTP without TLS");
    return true;
  }
  const size_t end = in_.find("\r\n\r\n", scanned_ < 3 ? 0 : scanned_ - 3);
  if (end == in_.npos) {
    scanned_ = in_.size();
    if (in_.empty()) return false;
    const auto error = check_partial_head(in_, server_.options.head);
    if (error) fail_request(error->status, error->message);
    return error.has_value();
  }
  scanned_ = 0;
  const std::string head = in_.substr(0, end + 4);
  if (const auto error = check_head(head, server_.options.head)) {
    fail_request(error->status, error->message);
    return true;
  }
  in_.erase(0, head.size());
  return begin_body(head);
}

bool Connection::begin_body(const std::string& head) {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<uint32_t>(2 * server_.options.head.total));
  parser_->body_limit(server_.options.max_body_bytes);
  on_chunk_ = [](uint64_t, boost::beast::string_view extensions, error_code& error) {
    if (extensions.size() > kMaxChunkExtension) error = http::error::bad_chunk_extension;
  };
  parser_->on_chunk_header(on_chunk_);
  error_code error;
  parser_->put(asio::buffer(head), error);
  const auto& message = parser_->get();
  const auto [authority, target] =
      split_target({message.target().data(), message.target().size()}).value_or(RequestTarget{});
  const size_t question = target.find('?');
  request_ = {.method = std::string(message.method_string()),
              .path = std::string(target.substr(0, question)),
              .query = question == target.npos ? "" : std::string(target.substr(question + 1)),
              .headers = {},
              .body = {},
              .peer = {},
              .admin = admin_,
              .proxied = proxy_,
              .share = std::make_shared<BodyShare>(server_.body_bytes, server_.max_body_memory())};
  for (const auto& field : message)
    request_.headers.emplace_back(lower_case(field.name_string()), field.value());
  for (auto& [name, value] : request_.headers)
    if (!authority.empty() && name == "host") value = authority;
  first_request_ = false;
  const bool counted = count_client();
  request_.peer = client_;
  head_only_ = request_.method == "HEAD";
  if (error && error != http::error::need_more) {
    const bool too_large = error == http::error::body_limit;
    fail_request(too_large ? 413 : 400, too_large ? "the body is too large" : error.message());
    return true;
  }
  keep_alive_ = parser_->keep_alive() && !reserved_;  // a reserved place is for one request
  const auto& served = server_.options.always_served;
  if (reserved_ && std::find(served.begin(), served.end(), request_.path) == served.end()) {
    fail_request(503, "too many connections");
    return true;
  }
  if (!counted) {
    fail_request(503, "too many connections from one address");
    return true;
  }
  if (auto refused = server_.handler.check(request_)) {
    const bool body_follows = !parser_->is_done();
    if (body_follows) keep_alive_ = false;
    state_ = State::kAnswering;
    send(*std::move(refused), false);
    finish_answer();
    return true;
  }
  const std::string expected = lower_case(request_.header("expect"));
  if (!expected.empty() && expected != "100-continue") {
    fail_request(417, "the only expectation that is met is 100-continue");
    return true;
  }
  const uint64_t size =
      parser_->content_length().value_or(parser_->chunked() ? server_.options.max_body_bytes : 0);
  set_deadline(server_.options.body_timeout +
               server_.options.body_timeout_per_mib * static_cast<int64_t>(size >> 20));
  if (!parser_->is_done() && !expected.empty()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush_later();
  }
  state_ = State::kBody;
  return true;
}

// Where a request comes through a trusted proxy, the client is the last address of
// X-Forwarded-For that is no trusted proxy: those before it are what the client claims.
bool Connection::count_client() {
  if (!proxy_) return true;
  std::string list(request_.header("x-forwarded-for")), client;
  do {
    const size_t comma = list.rfind(',');
    client = list.substr(comma + 1);  // npos + 1 is 0
    list.resize(comma == list.npos ? 0 : comma);
    std::erase(client, ' ');
  } while (server_.is_trusted(client) && !list.empty());
  error_code error;
  asio::ip::make_address(client, error);
  if (error || client == client_) return true;  // no address: the proxy's own
  if (!server_.count_address(client)) return false;
  server_.uncount_address(std::exchange(client_, client));
  return true;
}

bool Connection::read_body() {
  error_code error;
  while (!in_.empty() && !parser_->is_done() && !error) {
    const size_t used = parser_->put(asio::buffer(in_), error);
    in_.erase(0, used);
    if (used == 0) break;
  }
  if (error && error != http::error::need_more) {
    if (error == http::error::body_limit) {
      fail_request(413, fmt::format("the body exceeds {} bytes", server_.options.max_body_bytes));
    } else {
      fail_request(400, "malformed body: " + error.message());
    }
    return true;
  }
  if (!request_.share->grow_to(parser_->get().body().size())) {
    fail_request(503, "the server has no memory for this body now");
    return true;
  }
  if (parser_->is_done()) {
    dispatch();
    return true;
  }
  // Only an incomplete chunk header stays unread, and none is this long.
  if (in_.size() > kReadBuffer) {
    fail_request(400, "malformed chunk");
    return true;
  }
  return false;
}

void Connection::dispatch() {
  state_ = State::kAnswering;
  answered_ = false;
  dispatched_ = true;
  request_.body = std::move(parser_->get().body());
  const unsigned version = parser_->get().version();
  chunked_ = version >= 11;
  parser_.reset();
  auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), std::move(request_));
  exchange_ = exchange;
  try {
    server_.handler.handle(exchange);
  } catch (const std::exception& exception) {
    server_.handler.caught(exception);
    exchange->respond(server_.handler.error(exchange->request(), 500, "internal error"));
  }
}

// The connection ends after this answer: what follows on it cannot be trusted.
void Connection::fail_request(int status, const std::string& message) {
  if (status == 503) ++server_.counters.refused;
  if (status == 408) ++server_.counters.timeouts;
  state_ = State::kAnswering;
  keep_alive_ = false;
  parser_.reset();
  request_.drop_body();
  send(server_.handler.error(request_, status, message), false);
  finish_answer();
}

std::string head_text(const HttpResponse& response, bool keep_alive) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S GMT}\r\n", response.status,
                  reason_phrase(response.status), fmt::gmtime(std::time(nullptr)));
  if (!response.content_type.empty())
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
  for (const auto& [name, value] : response.headers)
    head += fmt::format("{}: {}\r\n", name, header_value(value));
  return keep_alive ? head : head + "Connection: close\r\n";
}

void Connection::send(HttpResponse response, bool is_stream) {
  if (state_ == State::kClosed) return;
  if (is_stream && !chunked_) keep_alive_ = false;
  std::string head = head_text(response, keep_alive_);
  if (!is_stream) {
    if (response.status != 204 && response.status != 304)
      head += fmt::format("Content-Length: {}\r\n", response.body.size());
  } else if (chunked_) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  head += "\r\n";
  out_ += head;
  if (is_stream) {
    send_piece(response.body);
  } else {
    chunked_ = false;
    if (!head_only_) out_ += response.body;
  }
  flush_later();
}

void Connection::send_piece(std::string_view piece) {
  if (state_ == State::kClosed || piece.empty() || head_only_) return;
  if (chunked_) {
    fmt::format_to(std::back_inserter(out_), "{:x}\r\n", piece.size());
    out_.append(piece).append("\r\n");
  } else {
    out_ += piece;
  }
  if (unsent() > server_.options.max_unsent_bytes) return client_left();
  flush_later();
}

void Connection::finish_answer() {
  if (state_ == State::kClosed) return;
  if (chunked_ && !head_only_) out_ += "0\r\n\r\n";
  chunked_ = false;
  answered_ = true;
  flush_later();
}

void Connection::flush_later() {
  if (flush_posted_ || !writing_.empty()) return;
  flush_posted_ = true;
  asio::post(server_.io, [self = shared_from_this()] {
    self->flush_posted_ = false;
    self->flush();
  });
}

void Connection::flush() {
  if (state_ == State::kClosed || !writing_.empty()) return;
  if (out_.empty()) {
    if (answered_) on_drained();
    return;
  }
  writing_.swap(out_);
  written_ = 0;
  progress_ = Clock::now();
  write_some();
}

void Connection::write_some() {
  const asio::const_buffer rest(writing_.data() + written_, writing_.size() - written_);
  socket_.async_write_some(rest, [self = shared_from_this()](error_code error, size_t size) {
    if (self->state_ == State::kClosed) return;
    if (error) return self->client_left();
    self->progress_ = Clock::now();
    self->written_ += size;
    if (self->written_ < self->writing_.size()) return self->write_some();
    self->writing_.clear();
    self->written_ = 0;
    self->flush();
  });
}

void Connection::on_drained() {
  if (state_ != State::kAnswering) return;
  if (reserved_ && dispatched_) return close();  // others wait for its place
  if (!keep_alive_) return linger();
  next_request();
}

void Connection::next_request() {
  state_ = State::kHead;
  answered_ = false;
  head_only_ = false;
  blank_lines_ = 0;
  request_ = {};
  exchange_.reset();
  set_deadline(in_.empty() ? server_.options.idle_timeout : server_.options.head_timeout);
  advance();
}

// Closing a socket with unread bytes resets the connection, and the client may lose the answer.
void Connection::linger() {
  state_ = State::kLinger;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  set_deadline(kLinger);
  wait_readable();
}

void Connection::client_left() {
  if (state_ == State::kClosed) return;
  const auto exchange = exchange_.lock();
  const bool unfinished = state_ == State::kAnswering && !answered_;
  close();
  if (!unfinished) return;
  ++server_.counters.disconnects;
  if (exchange && exchange->on_gone) std::exchange(exchange->on_gone, nullptr)();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  error_code ignored;
  socket_.close(ignored);
  server_.closed(*this);
}

void Connection::check_deadlines(Clock::time_point now) {
  const bool stalled = !writing_.empty() && now - progress_ > server_.options.write_stall;
  if (stalled) {
    ++server_.counters.timeouts;
    return client_left();
  }
  if (state_ == State::kAnswering && !waiting_ && !answered_ && closed_by_client())
    return client_left();
  if (state_ == State::kAnswering || now < deadline_) return;
  if (state_ == State::kLinger || (state_ == State::kHead && in_.empty())) return close();
  fail_request(408, "the request did not arrive in time");
}

}  // namespace dsv4
