// Listening, the timer, signals and worker threads; http_connection.cc has the connections.

#include "dsv4/server/http_server.h"

#include <algorithm>
#include <csignal>

#include "dsv4/base/error.h"
#include "dsv4/server/http_connection.h"

namespace dsv4 {
namespace {

constexpr std::chrono::milliseconds kTick{250};
constexpr size_t kMostRefused = 64;  // connections that wait for the client to read why

}  // namespace

void HttpServer::Impl::listen() {
  listen(main, options.port);
  if (options.admin_port) listen(admin, *options.admin_port);
  tick_later();
}

void HttpServer::Impl::listen(Listener& listener, uint16_t port) {
  tcp::acceptor& acceptor = listener.acceptor;
  error_code error;
  const auto address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) fail(ErrorCode::kBadInput, "--host {}: want an IP address or localhost", options.host);
  const tcp::endpoint endpoint(address, port);
  const auto check = [&](const char* what) {
    if (error) {
      fail(ErrorCode::kIo, "cannot {} {} port {}: {}", what, options.host, port, error.message());
    }
  };
  acceptor.open(endpoint.protocol(), error);
  check("open a socket for");
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  check("bind to");
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  check("listen on");
  accept(listener);
}

void HttpServer::Impl::accept(Listener& from) {
  from.acceptor.async_accept([this, &from](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    from.accept_failed = static_cast<bool>(error);  // out of descriptors: the next tick tries again
    if (error) return;
    from.accept_failed = true;  // until on_accept() has returned
    on_accept(std::move(socket), from.admin);
    from.accept_failed = false;
    accept(from);
  });
}

// A client that still sends its request when the connection closes would not see the answer.
void HttpServer::Impl::refuse(tcp::socket socket, const std::string& address) {
  ++counters.refused;
  const HttpResponse busy = handler.error({}, 503, "too many connections");
  const std::string text = fmt::format("{}Content-Length: {}\r\n\r\n{}", head_text(busy, false),
                                       busy.body.size(), busy.body);
  if (refused_connections >= kMostRefused) {
    error_code ignored;
    socket.write_some(asio::buffer(text), ignored);
    return;
  }
  auto connection =
      std::make_shared<Connection>(*this, std::move(socket), address, Connection::Place::kRefused);
  connections.emplace(connection.get(), connection);
  ++refused_connections;
  connection->turn_away(text);
}

void HttpServer::Impl::on_accept(tcp::socket socket, bool is_admin) {
  ++counters.accepted;
  error_code error;
  const auto peer = socket.remote_endpoint(error).address();
  if (error) return;
  const std::string address = peer.to_string();
  const size_t open = connections.size() - admin_connections - refused_connections;
  const bool full = is_admin ? admin_connections >= options.max_admin_connections
                             : open >= options.max_connections + options.reserved_connections;
  socket.non_blocking(true, error);
  if (full || (!is_admin && !count_address(address))) return refuse(std::move(socket), address);
  socket.set_option(tcp::no_delay(true), error);
  const Connection::Place place = is_admin                         ? Connection::Place::kAdmin
                                  : open < options.max_connections ? Connection::Place::kOrdinary
                                                                   : Connection::Place::kReserved;
  auto connection = std::make_shared<Connection>(*this, std::move(socket), address, place);
  connections.emplace(connection.get(), connection);
  admin_connections += is_admin;
  counters.connections = static_cast<int64_t>(connections.size());
  connection->start();
}

bool HttpServer::Impl::is_trusted(const std::string& address) const {
  const auto& trusted = options.trusted_proxies;
  return std::find(trusted.begin(), trusted.end(), address) != trusted.end();
}

bool HttpServer::Impl::count_address(const std::string& address) {
  error_code unknown;
  const bool unlimited =
      is_trusted(address) || asio::ip::make_address(address, unknown).is_loopback();
  size_t& count = per_address[address];
  if (!unlimited && count >= options.max_per_address) return false;
  ++count;
  return true;
}

void HttpServer::Impl::uncount_address(const std::string& address) {
  const auto counted = per_address.find(address);
  if (--counted->second == 0) per_address.erase(counted);
}

void HttpServer::Impl::closed(Connection& connection) {
  if (connection.admin()) {
    --admin_connections;
  } else if (connection.refused()) {
    --refused_connections;
  } else {
    uncount_address(connection.client());
  }
  connections.erase(&connection);
  counters.connections = static_cast<int64_t>(connections.size());
}

void HttpServer::Impl::tick_later() {
  timer.expires_after(kTick);
  timer.async_wait([this](error_code error) {
    if (error) return;
    tick_later();
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<Connection>> open;
    open.reserve(connections.size());
    for (const auto& [key, connection] : connections) open.push_back(connection);
    for (const auto& connection : open) connection->check_deadlines(now);
    for (Listener* listener : {&main, &admin})
      if (listener->accept_failed && listener->acceptor.is_open()) accept(*listener);
    if (tick) tick();
  });
}

void HttpServer::Impl::signal_later() {
  signals.async_wait([this](error_code error, int number) {
    if (error) return;
    signal_later();
    on_signal(number);
  });
}

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler) {
  try {
    impl_ = std::make_unique<Impl>(options, handler);
  } catch (const boost::system::system_error& error) {
    fail(ErrorCode::kResource,
         "cannot start the server: {} (ulimit -u and -n and the control group limit threads and "
         "descriptors)",
         error.code().message());
  }
  impl_->listen();
}

void HttpServer::join_workers() {
  impl_->workers.stop();
  impl_->workers.join();
}

HttpServer::~HttpServer() {
  join_workers();
  while (!impl_->connections.empty()) {
    const auto connection = impl_->connections.begin()->second;
    connection->close();
  }
}

uint16_t HttpServer::port() const {
  return impl_->main.acceptor.local_endpoint().port();
}

uint16_t HttpServer::admin_port() const {
  return impl_->options.admin_port ? impl_->admin.acceptor.local_endpoint().port() : 0;
}

void HttpServer::run() {
  while (!impl_->io.stopped()) {
    try {
      impl_->io.run();
    } catch (const std::exception& exception) {
      impl_->handler.caught(exception);
    }
  }
}

void HttpServer::stop() {
  impl_->io.stop();
}

void HttpServer::post_io(std::function<void()> work) {
  asio::post(impl_->io, std::move(work));
}

void HttpServer::post_worker(std::function<void()> work) {
  asio::post(impl_->workers, std::move(work));
}

void HttpServer::stop_listening() {
  error_code ignored;
  impl_->main.acceptor.close(ignored);
}

void HttpServer::on_tick(std::function<void()> tick) {
  impl_->tick = std::move(tick);
}

void HttpServer::on_signal(std::function<void(int)> handler) {
  impl_->on_signal = std::move(handler);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) impl_->signals.add(number);
  impl_->signal_later();
}

const HttpCounters& HttpServer::counters() const {
  return impl_->counters;
}

size_t HttpServer::busy() const {
  size_t busy = 0;
  for (const auto& [key, connection] : impl_->connections) busy += connection->busy();
  return busy;
}

}  // namespace dsv4
