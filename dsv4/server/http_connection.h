// Boost's half of http_server.h: the server's state, and a connection. Included by the two files
// that include Boost.

#pragma once

#include <boost/asio.hpp>
#include <boost/beast/http/parser.hpp>
#include <unordered_map>

#include "dsv4/server/http_server.h"

namespace dsv4 {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

inline constexpr size_t kReadBuffer = 64 << 10;

// A string that grows while the body arrives; Beast's string_body sets aside whatever length a
// client claims.
struct ArrivingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}
    template <class Length>
    void init(const Length&, error_code& error) {
      error = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (auto at = asio::buffer_sequence_begin(buffers); at != asio::buffer_sequence_end(buffers);
           ++at) {
        const asio::const_buffer one = *at;
        body_.append(static_cast<const char*>(one.data()), one.size());
      }
      return body_.size() - before;
    }
    void finish(error_code& error) { error = {}; }

   private:
    std::string& body_;
  };
};

// The status line and the headers, without those of the body's length and without the blank line.
std::string head_text(const HttpResponse& response, bool keep_alive);

// A port that connections come from.
struct Listener {
  Listener(asio::io_context& io, bool is_admin) : acceptor(io), admin(is_admin) {}

  tcp::acceptor acceptor;
  const bool admin;
  bool accept_failed = false;
};

struct HttpServer::Impl {
  Impl(const HttpServerOptions& o, HttpHandler& h)
      : options(o), handler(h), timer(io), signals(io), workers(o.workers) {}

  void listen();
  void listen(Listener& listener, uint16_t port);
  void accept(Listener& listener);
  void on_accept(tcp::socket socket, bool admin);
  void refuse(tcp::socket socket, const std::string& address);
  void tick_later();
  void signal_later();
  void closed(Connection& connection);
  bool is_trusted(const std::string& address) const;
  // False where the address has as many connections as one may have.
  bool count_address(const std::string& address);
  void uncount_address(const std::string& address);
  // At least one body of the greatest size fits.
  size_t max_body_memory() const {
    return std::max(options.max_body_memory, options.max_body_bytes);
  }

  const HttpServerOptions options;
  HttpHandler& handler;
  asio::io_context io{1};
  Listener main{io, false}, admin{io, true};
  asio::steady_timer timer;
  asio::signal_set signals;
  asio::thread_pool workers;
  size_t admin_connections = 0, refused_connections = 0;  // of `connections`
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::unordered_map<std::string, size_t> per_address;
  std::function<void()> tick;
  std::function<void(int)> on_signal;
  HttpCounters counters;
  const std::shared_ptr<BodyShare::Total> body_bytes = std::make_shared<BodyShare::Total>(0);
  std::vector<char> read_buffer = std::vector<char>(kReadBuffer);
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Server = HttpServer::Impl;

  enum class Place { kOrdinary, kReserved, kAdmin, kRefused };
  Connection(Server& server, tcp::socket socket, std::string address, Place place)
      : server_(server),
        socket_(std::move(socket)),
        proxy_(place != Place::kAdmin && server.is_trusted(address)),
        client_(std::move(address)),
        reserved_(place == Place::kReserved),
        admin_(place == Place::kAdmin),
        refused_(place == Place::kRefused) {}

  void start();
  // Sends this instead of reading a request, and closes when the client has read it.
  void turn_away(const std::string& answer);
  void check_deadlines(std::chrono::steady_clock::time_point now);
  const std::string& client() const { return client_; }
  bool admin() const { return admin_; }
  bool refused() const { return refused_; }
  bool busy() const { return state_ == State::kAnswering; }

  // For the exchange of the request that is being answered.
  void send(HttpResponse response, bool is_stream);
  void send_piece(std::string_view piece);
  void finish_answer();
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kHead, kBody, kAnswering, kLinger, kClosed };
  using Parser = http::request_parser<ArrivingBody>;

  size_t unsent() const { return out_.size() + writing_.size() - written_; }
  void set_deadline(std::chrono::milliseconds time) { deadline_ = Clock::now() + time; }
  void wait_readable();
  void on_readable();
  void peek();
  bool closed_by_client();
  void advance();
  bool read_head();
  bool read_body();
  bool begin_body(const std::string& head);
  bool count_client();
  void dispatch();
  void fail_request(int status, const std::string& message);
  void next_request();
  void linger();
  void client_left();

  void flush_later();
  void flush();
  void write_some();
  void on_drained();

  Server& server_;
  tcp::socket socket_;
  const bool proxy_;  // a trusted one
  std::string
      client_;  // the address that this connection counts for; a proxy's: of its latest request
  const bool reserved_, admin_, refused_;
  State state_ = State::kHead;
  Clock::time_point deadline_, progress_;
  bool waiting_ = false, first_request_ = true;

  std::string in_;
  size_t scanned_ = 0;   // of in_, without the end of the head
  int blank_lines_ = 0;  // before the head
  HttpRequest request_;
  std::optional<Parser> parser_;
  std::function<void(uint64_t, boost::beast::string_view, error_code&)> on_chunk_;
  std::weak_ptr<Exchange> exchange_;

  bool keep_alive_ = false, chunked_ = false, head_only_ = false, answered_ = false;
  bool dispatched_ = false;  // a whole request came to the handler
  bool flush_posted_ = false;
  std::string out_, writing_;
  size_t written_ = 0;  // of writing_
};

}  // namespace dsv4
