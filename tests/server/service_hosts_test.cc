// Names by which a server is called, pages of other origins, and proxies, over loopback. The rule
// itself: dsv4/server/host_rule_test.cc. Real proxies: tools/serve/check_proxies.py.

#include <gtest/gtest.h>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

constexpr const char* kKey = "Authorization: Bearer a-secret-key\r\n";

// The answer to a request that calls the server `host`.
Answer call(uint16_t port, const std::string& host, std::string_view headers = "",
            std::string_view method = "POST", std::string_view path = "/v1/chat/completions") {
  const std::string body = method == "POST" ? chat_body("Hi").dump() : "";
  std::string text = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: " + host +
                     "\r\n" + std::string(headers);
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  Socket socket(port);
  socket.send(text + "\r\n" + body);
  std::string bytes;
  while (!parse_answer(bytes).complete && socket.receive(bytes)) {
  }
  return parse_answer(bytes);
}

ScriptOptions with_key() {
  ScriptOptions options;
  options.service.api_keys = {{"test", "a-secret-key"}};
  return options;
}

// As a proxy on this machine sends it, with and without --trusted-proxy.
TEST(ServiceHosts, WithKeysEveryNameIsServed) {
  for (const bool trusted : {false, true}) {
    ScriptOptions options = with_key();
    if (trusted) options.service.http.trusted_proxies = {"127.0.0.1"};
    ScriptedServer keyed(kServiceScript, options);
    for (const char* host : {"chat.example.com", "mybox.tail1234.ts.net", "host.docker.internal"}) {
      EXPECT_EQ(call(keyed.port(), host, kKey).status, 200) << host;
      EXPECT_EQ(call(keyed.port(), host, "", "GET", "/").status, 200) << host;
      EXPECT_EQ(call(keyed.port(), host, "").status, 401) << host;
    }
    // The page's own requests, whatever name the proxy sends.
    const std::string page = std::string(kKey) + "Origin: https://chat.example.com\r\n";
    EXPECT_EQ(call(keyed.port(), "chat.example.com", page).status, 200);
    EXPECT_EQ(call(keyed.port(), "127.0.0.1:8000", page).status, 200);
    // A page of another site may not read the answer, nor may it ask whether it could send a key.
    const std::string other = std::string(kKey) + "Origin: https://evil.example\r\n";
    const Answer answer = call(keyed.port(), "chat.example.com", other);
    EXPECT_FALSE(answer.headers.contains("access-control-allow-origin"));
    EXPECT_EQ(call(keyed.port(), "chat.example.com", other, "OPTIONS").status, 403);
  }
}

TEST(ServiceHosts, WithoutKeysNamesAreAllowed) {
  const Answer refused = call(server().port(), "chat.example.com");
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("--allowed-host"), std::string::npos) << refused.body;
  for (const char* local : {"foo.localhost", "mybox.local", "host.docker.internal", "192.168.1.2"})
    EXPECT_EQ(call(server().port(), local).status, 200) << local;
  ScriptOptions options;
  options.service.allowed_hosts = {"chat.example.com", "*.ts.net"};
  ScriptedServer named(kServiceScript, options);
  EXPECT_EQ(call(named.port(), "chat.example.com").status, 200);
  EXPECT_EQ(call(named.port(), "box.tail1.ts.net").status, 200);
  EXPECT_EQ(call(named.port(), "evil.example").status, 403);
  const char* const page = "Origin: https://chat.example.com\r\n";
  EXPECT_EQ(call(named.port(), "127.0.0.1:8000", page).status, 200) << "nginx's default";
  EXPECT_EQ(call(named.port(), "chat.example.com", "Origin: https://evil.example\r\n").status, 403);
}

TEST(ServiceHosts, ATrustedProxyNamesTheServer) {
  ScriptOptions options;
  options.service.http.trusted_proxies = {"127.0.0.1"};
  ScriptedServer proxied(kServiceScript, options);
  const char* const page =
      "Origin: https://chat.example.com\r\nX-Forwarded-Host: chat.example.com\r\n";
  EXPECT_EQ(call(proxied.port(), "127.0.0.1:8000", page).status, 200);
  EXPECT_EQ(call(server().port(), "127.0.0.1:8000", page).status, 403) << "it trusts no proxy";
  EXPECT_EQ(call(proxied.port(), "chat.example.com", page).status, 403) << "Host is another check";
}

// What openai-js and anthropic-js send from a browser.
TEST(ServiceHosts, PreflightsOfBrowserSdksPass) {
  ScriptOptions options;
  options.service.cors_origins = {"https://app.example"};
  ScriptedServer shared(kServiceScript, options);
  const std::string asked =
      "authorization,content-type,x-stainless-lang,x-stainless-retry-count,x-stainless-timeout,"
      "anthropic-dangerous-direct-browser-access";
  const std::string origin = "Origin: https://app.example\r\n";
  const Answer preflight = call(
      shared.port(), "localhost",
      origin + "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: " + asked +
          "\r\n",
      "OPTIONS");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), asked);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://app.example");
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "POST");
  EXPECT_EQ(preflight.headers.at("access-control-max-age"), "7200");
  const Answer answer = call(shared.port(), "localhost", origin);
  const std::string exposed = answer.headers.at("access-control-expose-headers");
  for (const char* header : {"x-request-id", "x-dsv4-seed", "x-dsv4-warning"})
    EXPECT_NE(exposed.find(header), exposed.npos) << header;
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  EXPECT_EQ(call(shared.port(), "localhost").headers.at("vary"), "Origin") << "for caches";
  EXPECT_EQ(call(shared.port(), "localhost", "Origin: https://evil.example\r\n", "OPTIONS").status,
            403);
}

}  // namespace
}  // namespace dsv4::test
