// One request and its answer over libcurl, on a connection that is kept for the next one. No
// redirect is followed, nothing is tried again: http_fetch.h does both.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "dsv4/hub/curl_library.h"

namespace dsv4 {

// "scheme://host:port" in lower case, with the port even where it is the usual one. Throws
// kBadInput for what is not http or https, or has a user name before the host.
std::string origin_of(const std::string& url);
// The host alone, for messages: addresses of downloads hold secrets.
std::string host_of(const std::string& url);

struct HubRequest {
  std::string url;
  std::string token;            // empty: none is sent
  int64_t begin = 0, end = -1;  // bytes [begin, end) of the answer; end -1: all, without a range
};

struct HubAnswer {
  int status = 0;                              // 0: there is no whole answer
  std::string problem;                         // why not, as libcurl says it
  bool permanent = false;                      // trying again cannot help (a bad certificate)
  std::map<std::string, std::string> headers;  // names in lower case
  std::string redirect;                        // absolute address of a 3xx
  std::string text;                            // the beginning of the body of anything but success

  std::string header(const std::string& name) const;
};

class HttpExchange {
 public:
  // `stop` ends a request that is under way within a second. timeout_s: without at least 1 KiB/s
  // for so long, a connection counts as dead.
  HttpExchange(int timeout_s, const std::atomic<bool>& stop);
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  // on_head is called once before the body of an answer with status 200 or 206, on_body for each
  // piece of it. An exception of theirs ends the request and leaves this function.
  using OnHead = std::function<void(const HubAnswer&)>;
  using OnBody = std::function<void(std::span<const std::byte>)>;
  HubAnswer run(const HubRequest& request, const OnHead& on_head, const OnBody& on_body);

 private:
  struct Receiver;
  static size_t take_header(char* data, size_t one, size_t size, void* receiver);
  static size_t take_body(char* data, size_t one, size_t size, void* receiver);
  static int check_stop(void* receiver, curl_off_t, curl_off_t, curl_off_t, curl_off_t);
  void set_options(const HubRequest& request, Receiver* receiver, char* problem) const;

  const CurlLibrary& curl_;
  CURL* handle_;
  int timeout_s_;
  const std::atomic<bool>& stop_;
};

}  // namespace dsv4
