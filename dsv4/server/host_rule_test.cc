// Names of the server and origins of pages, without a server; tests/server/service_hosts_test.cc
// asks one.

#include "dsv4/server/host_rule.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(HostRule, NamesOfHostHeaders) {
  EXPECT_EQ(name_of_host("Chat.Example.com.:8443"), "chat.example.com");
  EXPECT_EQ(name_of_host("[::1]:80"), "::1");
  EXPECT_EQ(name_of_host("[::1]"), "::1");
  EXPECT_EQ(name_of_host("10.0.0.1"), "10.0.0.1");
  for (const char* bad : {"", ":80", "[::1", "[::1]x", "::1", "a:b", "[127.0.0.1]", "."})
    EXPECT_FALSE(name_of_host(bad)) << bad;
}

TEST(HostRule, WithoutKeysOnlyLocalNamesPass) {
  const HostRule rule{HostRule::Options{}};
  for (const char* host : {"localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8", "foo.localhost",
                           "mybox.local:8000", "host.docker.internal", "model.internal", "10.1.2.3",
                           "172.16.0.1", "172.31.9.9:80", "192.168.1.2", "[fd00::1]", ""})
    EXPECT_TRUE(rule.host_allowed(host)) << host;
  for (const char* host :
       {"chat.example.com", "127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil.local.example", ".local", "xlocal", "127.1", "172.32.0.1", "11.0.0.1", "192.169.0.1",
        "8.8.8.8", "[2001:db8::1]", "local", "internal", "localhost:evil"})
    EXPECT_FALSE(rule.host_allowed(host)) << host;
}

TEST(HostRule, WithKeysEveryNamePasses) {
  const HostRule rule({.keys = true});
  for (const char* host : {"chat.example.com", "8.8.8.8", "mybox.tail1234.ts.net"})
    EXPECT_TRUE(rule.host_allowed(host)) << host;
}

TEST(HostRule, NamesMayBeAllowed) {
  const HostRule rule(
      {.allowed_hosts = {"Chat.example.com", ".corp.example", "*.ts.net", "[2001:db8::1]"}});
  for (const char* host : {"chat.example.com:443", "CHAT.example.com.", "corp.example",
                           "a.b.corp.example", "box.tail1.ts.net", "[2001:db8::1]:80", "localhost"})
    EXPECT_TRUE(rule.host_allowed(host)) << host;
  for (const char* host : {"example.com", "x.chat.example.com", "evilcorp.example", "ts.net",
                           "xts.net", "chat.example.com.evil.example"})
    EXPECT_FALSE(rule.host_allowed(host)) << host;
  EXPECT_TRUE(HostRule({.allowed_hosts = {"*"}}).host_allowed("anything.example"));
}

TEST(HostRule, EntriesAreChecked) {
  for (const char* good : {"*", "a.example", ".a.example", "*.a.example", "10.0.0.1", "[fd00::1]"})
    EXPECT_EQ(allowed_host_error(good), "") << good;
  for (const char* bad : {"", ".", "*.", "https://a.example", "a.example:80", "a*.example", "**",
                          "a.example/", "a b", "a,b"})
    EXPECT_NE(allowed_host_error(bad), "") << bad;
}

using Origin = HostRule::Origin;

Origin origin_of(const HostRule& rule, HttpHeaders headers, bool proxied = false) {
  return rule.origin_of({.headers = std::move(headers), .proxied = proxied});
}

TEST(HostRule, OriginsOfPages) {
  const HostRule rule({.cors_origins = {"https://app.example"}});
  EXPECT_EQ(origin_of(rule, {{"host", "localhost:8000"}}), Origin::kNone);
  EXPECT_EQ(origin_of(rule, {{"host", "localhost:8000"}, {"origin", "http://localhost:8000"}}),
            Origin::kOwn);
  EXPECT_EQ(origin_of(rule, {{"host", "localhost:8000"}, {"origin", "http://localhost:3000"}}),
            Origin::kOther);
  EXPECT_EQ(origin_of(rule, {{"host", "localhost"}, {"origin", "https://app.example"}}),
            Origin::kListed);
  for (const char* other : {"null", "https://app.example.evil.example", "https://", "app.example"})
    EXPECT_EQ(origin_of(rule, {{"host", "localhost"}, {"origin", other}}), Origin::kOther) << other;
}

// nginx sends the name that it has for the server, or Host without its port; Caddy sends both.
TEST(HostRule, OriginsBehindAProxy) {
  const HostRule rule{HostRule::Options{}};
  const HttpHeaders rewritten = {{"host", "127.0.0.1:8000"},
                                 {"x-forwarded-host", "chat.example.com"},
                                 {"origin", "https://chat.example.com"}};
  const HttpHeaders no_port = {{"host", "chat.example.com"},
                               {"origin", "https://chat.example.com:8443"}};
  EXPECT_EQ(origin_of(rule, rewritten, /*proxied=*/true), Origin::kOwn);
  EXPECT_EQ(origin_of(rule, no_port, /*proxied=*/true), Origin::kOwn);
  EXPECT_EQ(origin_of(rule, rewritten), Origin::kOther) << "anyone may send that header";
  EXPECT_EQ(origin_of(rule, no_port), Origin::kOther);
  const HostRule named({.allowed_hosts = {"chat.example.com", ".corp.example", "*"}});
  const HttpHeaders plain = {{"host", "127.0.0.1:8000"}, {"origin", "https://chat.example.com"}};
  EXPECT_EQ(origin_of(named, plain), Origin::kOwn);
  for (const char* other : {"https://x.corp.example", "https://evil.example"})
    EXPECT_EQ(origin_of(named, {{"host", "127.0.0.1"}, {"origin", other}}), Origin::kOther)
        << "a pattern names hosts, not pages";
  EXPECT_TRUE(HostRule({.keys = true}).origin_allowed({.headers = plain}));
  EXPECT_FALSE(HostRule(HostRule::Options{}).origin_allowed({.headers = plain}));
}

}  // namespace
}  // namespace dsv4
