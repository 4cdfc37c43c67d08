// What a trace gets of a request that is over: when it came, how long each part of it took, and
// what it was. ServiceOptions::on_trace takes it to whoever records traces.

#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "dsv4/server/answer.h"
#include "dsv4/server/request_headers.h"

namespace dsv4 {

struct RequestTrace {
  std::chrono::system_clock::time_point begin;
  Times times;
  std::optional<TraceContext> parent;  // the caller's span
  Api api = Api::kChat;
  std::string path, model, request_id, client_id, finish;
  int status = 200;
  Usage usage;
};

// Called on the I/O thread, so it neither waits nor throws.
using OnTrace = std::function<void(RequestTrace)>;

}  // namespace dsv4
