#include "dsv4/server/http_head.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

int status(std::string_view head) {
  const auto error = check_head(head, {});
  return error ? error->status : 0;
}

TEST(HttpHead, AcceptsWhatClientsSend) {
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 0);
  EXPECT_EQ(status("POST /v1/x?y=1 HTTP/1.1\r\nhost: a:8000\r\nContent-Length: 3\r\n\r\n"), 0);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"), 0);
  EXPECT_EQ(status("GET / HTTP/1.0\r\n\r\n"), 0);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost:a\r\nX-Empty:\r\nX-Text: caf\xc3\xa9\r\n\r\n"), 0);
}

TEST(HttpHead, RefusesWhatTwoParsersReadDifferently) {
  const std::string host = "Host: a\r\n";
  for (const std::string& lines : {
           std::string("Content-Length: 3\r\nContent-Length: 3\r\n"),
           std::string("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
           std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
           std::string("Transfer-Encoding: gzip, chunked\r\n"),
           std::string("Transfer-Encoding: xchunked\r\n"),
           std::string("Content-Length : 3\r\n"),
           std::string("Content-Length: +3\r\n"),
           std::string("Content-Length: 3, 3\r\n"),
           std::string("Content-Length: 0x3\r\n"),
           std::string("Content-Length: 99999999999999999999\r\n"),
           std::string("X: a\r\n b\r\n"),
           std::string("X: a\nContent-Length: 3\r\n"),
           std::string("X: a\rb\r\n"),
           std::string("X\r\n"),
           std::string(": x\r\n"),
           std::string("X\0Y: 1\r\n", 8),
           std::string("Host: b\r\n"),
       }) {
    EXPECT_EQ(status("POST / HTTP/1.1\r\n" + host + lines + "\r\n"), 400) << lines;
  }
}

TEST(HttpHead, ChecksTheRequestLine) {
  const std::string rest = "\r\nHost: a\r\n\r\n";
  for (const char* line : {"GET /", "GET  / HTTP/1.1", "GET / x HTTP/1.1", " GET / HTTP/1.1",
                           "G(T / HTTP/1.1", "GET ftp://a/ HTTP/1.1", "GET http:///x HTTP/1.1",
                           "GET http://u@a/ HTTP/1.1", "GET a/b HTTP/1.1", "GET http:// HTTP/1.1",
                           "GET * HTTP/1.1", "GET /\x01 HTTP/1.1", "GET / XTTP/1.1", ""}) {
    EXPECT_EQ(status(line + rest), 400) << line;
  }
  EXPECT_EQ(status("GET / HTTP/2.0" + rest), 505);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n\r\n"), 400) << "no Host";
}

// RFC 9112, 3.2.2: a server accepts the absolute form, too.
TEST(HttpHead, TargetsMayNameTheServer) {
  EXPECT_EQ(status("GET http://a:8000/v1/models?x HTTP/1.1\r\nHost: a\r\n\r\n"), 0);
  const auto target = split_target("HTTP://a:8000/v1/models?x");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->authority, "a:8000");
  EXPECT_EQ(target->path, "/v1/models?x");
  EXPECT_EQ(split_target("http://a")->path, "/");
  EXPECT_EQ(split_target("/a//b")->authority, "");
  EXPECT_EQ(split_target("/a//b")->path, "/a//b");
}

TEST(HttpHead, HasLimits) {
  const auto lines = [](size_t count, size_t size) {
    std::string out = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (size_t i = 0; i < count; ++i) out += "X: " + std::string(size, 'a') + "\r\n";
    return out + "\r\n";
  };
  EXPECT_EQ(status(lines(99, 10)), 0);
  EXPECT_EQ(status(lines(100, 10)), 431);
  EXPECT_EQ(status(lines(1, 8000)), 0);
  EXPECT_EQ(status(lines(1, 9000)), 431);
  EXPECT_EQ(status(lines(9, 4000)), 431);
  EXPECT_EQ(status("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n"), 414);
}

TEST(HttpHead, RefusesEarlyWhatCannotBecomeGood) {
  EXPECT_FALSE(check_partial_head("GET / HT", {}));
  EXPECT_FALSE(check_partial_head("GET / HTTP/1.1\r\nX: 1", {}));
  EXPECT_EQ(check_partial_head("GET / HTTP/1.1\n", {})->status, 400);
  EXPECT_EQ(check_partial_head(std::string(9000, 'a'), {})->status, 414);
  EXPECT_EQ(check_partial_head("G /\r\n" + std::string(40000, 'a'), {})->status, 431);
}

TEST(HttpHead, FindsItsEnd) {
  EXPECT_EQ(head_size("GET / HTTP/1.1\r\n\r\nbody"), 18u);
  EXPECT_EQ(head_size("GET / HTTP/1.1\r\n"), 0u);
}

}  // namespace
}  // namespace dsv4
