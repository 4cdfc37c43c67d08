// TraceExporter: requests as OpenTelemetry spans, to a collector, by OTLP over HTTP in its JSON
// form (docs/clusters.md, docs/adr/0034).
//
//   POST /v1/chat/completions  [-----------------------------------]
//     queue                    [---]
//     prefill                       [--------]
//     decode                                 [---------------------]
//
// The server hands a request over when it has ended and goes on; a thread of its own writes and
// sends. A queue that is full, and a collector that fails or answers late, cost spans, which are
// counted, and no answer any time.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/http_client.h"
#include "dsv4/server/request_trace.h"

namespace dsv4::apps {

struct TraceOptions {
  std::string endpoint;  // of the signal, as http://collector:4318/v1/traces; empty: no traces
  std::vector<std::pair<std::string, std::string>> headers;  // of every request
  std::map<std::string, std::string> resource;               // attributes
  std::chrono::milliseconds timeout{10'000}, delay{5'000};   // of a request; between two
  size_t most_waiting = 2048, most_in_batch = 512;           // requests of the server
  double ratio = 1;                                          // of the traces that begin here
  bool follow_caller = true;  // a trace of a caller is recorded where the caller records it
};

// From the variables of OpenTelemetry that dsv4/base/env.cc lists. Throws kBadInput, "NAME: ...".
using Variable = std::function<std::string(const char* name)>;  // empty: not set
TraceOptions trace_options(const Variable& variable, const std::string& version);

// The body of an export. new_id(n): n random bytes in hexadecimal.
using NewId = std::function<std::string(size_t bytes)>;
std::string encode_traces(const std::vector<RequestTrace>& traces, const TraceOptions& options,
                          const std::string& version, const NewId& new_id);

// Whether a trace of this id that begins here is one of the recorded ones.
bool is_sampled(const std::string& trace_id, double ratio);

class TraceExporter {
 public:
  TraceExporter(const TraceOptions& options, std::string version);
  ~TraceExporter();  // sends what waits, for two seconds at most

  void add(RequestTrace trace);                   // any thread; never waits for the collector
  int64_t exported() const { return exported_; }  // spans
  int64_t dropped() const { return dropped_; }

 private:
  void run();
  bool send(const std::vector<RequestTrace>& traces);
  std::vector<RequestTrace> take();

  const TraceOptions options_;
  const std::string version_;
  const HttpUrl url_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<RequestTrace> waiting_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> exported_ = 0, dropped_ = 0;
  bool failed_ = false;  // the last request, which the log has
  std::chrono::steady_clock::time_point last_send_by_;
  std::jthread thread_;
};

}  // namespace dsv4::apps
