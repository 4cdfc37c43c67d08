// HttpServer with handlers that no service has: those that throw.

#include "dsv4/server/http_server.h"

#include <thread>

#include "tests/server/http_client.h"

namespace dsv4 {
namespace {

using test::ask;

class Thrower : public HttpHandler {
 public:
  std::optional<HttpResponse> check(const HttpRequest&) override { return std::nullopt; }
  void handle(std::shared_ptr<Exchange> exchange) override {
    if (exchange->request().path == "/throw") throw std::runtime_error("from a handler");
    if (exchange->request().path == "/late") {
      exchange->begin_stream({.body = "begun"});
      throw std::runtime_error("from a stream");
    }
    exchange->respond({.body = "fine"});
  }
  HttpResponse error(const HttpRequest&, int status, const std::string& message) override {
    return {.status = status, .body = message};
  }
  void caught(const std::exception& exception) override {
    seen += exception.what() + std::string(";");
  }

  std::string seen;
};

TEST(HttpServer, GoesOnAfterExceptions) {
  Thrower handler;
  HttpServer server({.port = 0}, handler);
  server.on_tick([ticks = 0]() mutable {
    if (ticks++ < 2) throw std::runtime_error("from a tick");
  });
  const uint16_t port = server.port();
  std::thread thread([&] { server.run(); });
  EXPECT_EQ(ask(port, "GET", "/throw").status, 500);
  EXPECT_EQ(ask(port, "GET", "/late").complete, false);
  server.post_io([] { throw std::runtime_error("from posted work"); });
  EXPECT_EQ(ask(port, "GET", "/").body, "fine");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // two ticks
  EXPECT_EQ(ask(port, "GET", "/").body, "fine");
  server.stop();
  thread.join();
  EXPECT_NE(handler.seen.find("from a handler;"), std::string::npos) << handler.seen;
  EXPECT_NE(handler.seen.find("from a stream;"), std::string::npos);
  EXPECT_NE(handler.seen.find("from posted work;"), std::string::npos);
  EXPECT_NE(handler.seen.find("from a tick;from a tick;"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
