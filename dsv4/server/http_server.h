// HttpServer: HTTP/1.1 over TCP for thousands of connections on one thread, with the limits and
// timeouts of docs/spec/serving.md 7.2. No TLS: a proxy does that.
//
// Only http_connection.h, and the two files that include it, include Boost.

#pragma once

#include "dsv4/server/http.h"
#include "dsv4/server/http_head.h"

namespace dsv4 {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  // A second port, whose connections say HttpRequest::admin and count for no limit but their own.
  std::optional<uint16_t> admin_port;  // 0: any free one
  size_t max_admin_connections = 64;
  size_t max_connections = 4096;
  size_t reserved_connections = 8;  // over the maximum, for the paths in `always_served`
  size_t max_per_address = 64;      // loopback excepted
  // Proxies whose X-Forwarded-For names the client that max_per_address counts.
  std::vector<std::string> trusted_proxies;
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_body_memory = size_t{256} << 20;  // of the bodies that wait or are read, together
  size_t max_unsent_bytes = size_t{16} << 20;  // a client that reads slower is cut off
  HeadLimits head;
  std::chrono::milliseconds head_timeout{10'000}, idle_timeout{60'000}, write_stall{30'000};
  std::chrono::milliseconds body_timeout{30'000}, body_timeout_per_mib{1'000};
  std::vector<std::string> always_served = {"/health", "/ready", "/metrics"};
  int workers = 2;
};

struct HttpCounters {
  int64_t connections = 0;  // open now
  int64_t accepted = 0, refused = 0, timeouts = 0, disconnects = 0;
  int64_t tls_hellos = 0;  // clients that spoke TLS
};

class Connection;

class HttpServer : public HttpThreads {
 public:
  // Listens at once; throws kIo where that fails. The handler must outlive the server.
  HttpServer(const HttpServerOptions& options, HttpHandler& handler);
  ~HttpServer() override;

  uint16_t port() const;
  uint16_t admin_port() const;  // 0: there is none
  // Serves until stop(); called by the thread that becomes the I/O thread. The following may be
  // called from any thread.
  void run();
  void stop();
  void post_io(std::function<void()> work) override;
  void post_worker(std::function<void()> work) override;

  // Drops what workers have not begun and waits for the rest; after run().
  void join_workers();

  // On the I/O thread, or before run().
  void stop_listening();                     // the admin port stays open
  void on_tick(std::function<void()> tick);  // every 250 ms
  // SIGTERM, SIGINT and SIGHUP no longer end the process.
  void on_signal(std::function<void(int)> handler);
  const HttpCounters& counters() const;
  // Connections whose answer is not complete.
  size_t busy() const;

 private:
  friend class Connection;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4
