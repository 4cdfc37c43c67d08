#include "dsv4/server/request_headers.h"

#include <gtest/gtest.h>

#include <vector>

namespace dsv4 {
namespace {

TEST(RequestId, TakesNamesAndNothingElse) {
  for (const std::string text :
       {"a", "req_1", "0af7651916cd43dd8448eb211c80319c", "a/b:c+d=e@f.g-h"})
    EXPECT_TRUE(is_request_id(text)) << text;
  EXPECT_TRUE(is_request_id(std::string(kMaxRequestId, 'x')));
  EXPECT_FALSE(is_request_id(std::string(kMaxRequestId + 1, 'x')));
  for (const std::string text : {"", " ", "a b", "a\tb", "a\r\nSet-Cookie: x", "caf\xc3\xa9",
                                 "a\"b", "a\\b", "{}", "a,b", "\x7f"})
    EXPECT_FALSE(is_request_id(text)) << text;
  EXPECT_FALSE(is_request_id(std::string_view("a\0b", 3)));
}

// Every byte, as the only one: what is allowed is a character of a header's token or of a path.
TEST(RequestId, EveryByte) {
  int allowed = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (!is_request_id(std::string_view(&c, 1))) continue;
    ++allowed;
    EXPECT_GT(byte, 32);
    EXPECT_LT(byte, 127);
  }
  EXPECT_EQ(allowed, 26 + 26 + 10 + 8);
}

TEST(RequestId, IsReadFromTheHeader) {
  HttpRequest request;
  EXPECT_EQ(client_request_id(request), "");
  request.headers = {{"x-request-id", "abc"}};
  EXPECT_EQ(client_request_id(request), "abc");
  request.headers = {{"x-request-id", "a b"}};
  EXPECT_EQ(client_request_id(request), "");
}

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kSpan = "b7ad6b7169203331";

TEST(TraceContext, ReadsTheHeader) {
  const auto context = parse_traceparent("00-" + kTrace + "-" + kSpan + "-01");
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->span_id, kSpan);
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + kSpan + "-00")->sampled);
  EXPECT_TRUE(parse_traceparent("00-" + kTrace + "-" + kSpan + "-ff")->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + kSpan + "-fe")->sampled);
  // A version that is not known yet may have more fields.
  EXPECT_TRUE(parse_traceparent("01-" + kTrace + "-" + kSpan + "-01-what-else"));
  EXPECT_TRUE(parse_traceparent("cc-" + kTrace + "-" + kSpan + "-01"));
}

TEST(TraceContext, RefusesEverythingElse) {
  const std::string good = "00-" + kTrace + "-" + kSpan + "-01";
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(parse_traceparent(std::string_view(good).substr(0, size))) << size;
  for (const std::string& bad : std::vector<std::string>{
           good + "-x", good + "0", "ff-" + kTrace + "-" + kSpan + "-01",
           "01" + good.substr(2) + "x", "00-" + std::string(32, '0') + "-" + kSpan + "-01",
           "00-" + kTrace + "-" + std::string(16, '0') + "-01",
           "00-" + kTrace.substr(1) + "G-" + kSpan + "-01", "00_" + good.substr(3)})
    EXPECT_FALSE(parse_traceparent(bad)) << bad;
  std::string upper = good;
  upper[5] = 'F';
  EXPECT_FALSE(parse_traceparent(upper));
}

// Any change of one byte gives hexadecimal ids or nothing.
TEST(TraceContext, AnyByteAnywhere) {
  const std::string good = "00-" + kTrace + "-" + kSpan + "-01";
  for (size_t at = 0; at < good.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = good;
      text[at] = static_cast<char>(byte);
      const auto context = parse_traceparent(text);
      if (!context) continue;
      EXPECT_EQ((context->trace_id + context->span_id).find_first_not_of("0123456789abcdef"),
                text.npos);
      EXPECT_EQ(context->trace_id.size() + context->span_id.size(), 48u);
    }
  }
}

}  // namespace
}  // namespace dsv4
