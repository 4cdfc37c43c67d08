// Fetches texts and parts of files from the hub and from where it redirects to: a token goes to the
// hub only, what fails for a while is tried again, and every new try is announced.

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "dsv4/hub/http_exchange.h"

namespace dsv4 {

struct HubPolicy {
  std::string endpoint;  // of the hub: the only origin that gets the token
  std::string token;
  int tries = 5;  // in a row that bring less than 1 MiB each
  int timeout_s = 30;
  double first_wait_s = 1;  // before the second try; twice as long before each further one
};

// Ends what several threads fetch.
class StopSignal {
 public:
  const std::atomic<bool>& flag() const { return stopped_; }
  void stop();
  // False when it was stopped meanwhile.
  bool wait(double seconds);

 private:
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Thrown in a thread that was stopped.
struct FetchStopped {};

// A file at the hub.
struct RemoteFile {
  std::string url;     // at the hub
  std::string oid;     // that X-Linked-Etag must have; empty: not compared
  std::string direct;  // where the hub redirected to; such an address expires
  int64_t size = 0;
};

class HttpFetch {
 public:
  using Notice = std::function<void(const std::string&)>;

  // `notice` gets a line for each failed try that is followed by another one.
  HttpFetch(HubPolicy policy, StopSignal& stop, Notice notice);

  // A whole text of at most max_bytes. `what` is fetched, in errors: "ORG/NAME". Errors are kIo for
  // what may work another time, and kBadInput for what will not.
  struct Text {
    std::string body, link;  // link: the header
  };
  Text read(const std::string& url, const std::string& what, size_t max_bytes);

  // Bytes [begin, end) of the file, in order. A server that does not know ranges may start over at
  // 0 where start is 0 and end the file's size.
  using Sink = std::function<void(int64_t offset, std::span<const std::byte> bytes)>;
  void read_range(RemoteFile& file, const std::string& what, int64_t start, int64_t begin,
                  int64_t end, const Sink& sink);

 private:
  HubAnswer follow(RemoteFile& file, const std::string& what, int64_t begin, int64_t end,
                   const HttpExchange::OnHead& on_head, const HttpExchange::OnBody& on_body);
  HubAnswer repeat(const std::string& what, const std::function<HubAnswer()>& attempt,
                   const int64_t& at);
  [[noreturn]] void give_up(const std::string& what, const HubAnswer& answer, int tries) const;
  double wait_before(int failed, const HubAnswer& answer, const std::string& what) const;

  HubPolicy policy_;
  StopSignal& stop_;
  Notice notice_;
  HttpExchange exchange_;
};

}  // namespace dsv4
