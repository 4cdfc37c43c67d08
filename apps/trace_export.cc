#include "apps/trace_export.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dsv4/base/ascii.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/thread.h"
#include "dsv4/server/http.h"
#include "dsv4/server/server_log.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;
using OtlpJson = nlohmann::ordered_json;

constexpr std::chrono::seconds kLastSend{2};
constexpr int kServer = 2, kInternal = 1, kStatusError = 2;  // of OTLP: span kinds, status code

// ---- Variables

int64_t number_of(const Variable& variable, const char* name, int64_t if_unset) {
  const std::string text = variable(name);
  if (text.empty()) return if_unset;
  const bool digits = text.size() <= 9 && text.find_first_not_of("0123456789") == text.npos;
  if (!digits || std::stoll(text) < 1)
    fail(ErrorCode::kBadInput, "{}: '{}' is not a whole number from 1 to 999999999", name,
         quotable(text));
  return std::stoll(text);
}

// "key=value,key=value", values percent-encoded.
std::vector<std::pair<std::string, std::string>> pairs_of(const char* name,
                                                          const std::string& text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = trimmed(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    const std::string key(trimmed(item.substr(0, equals)));
    const auto value =
        equals == item.npos ? std::nullopt : percent_decoded(trimmed(item.substr(equals + 1)));
    const auto visible = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; };
    if (key.empty() || !value || !std::ranges::all_of(key, visible) ||
        !std::ranges::all_of(*value, visible))
      fail(ErrorCode::kBadInput, "{}: '{}' is not key=value", name, quotable(item));
    pairs.emplace_back(key, *value);
  }
  return pairs;
}

// The variable of the signal, else that of all signals.
std::string either(const Variable& variable, const char* ending) {
  const std::string own = variable(fmt::format("OTEL_EXPORTER_OTLP_TRACES_{}", ending).c_str());
  return own.empty() ? variable(fmt::format("OTEL_EXPORTER_OTLP_{}", ending).c_str()) : own;
}

void read_sampler(const Variable& variable, TraceOptions& options) {
  std::string sampler = variable("OTEL_TRACES_SAMPLER");
  if (sampler.empty()) return;
  constexpr std::string_view kParent = "parentbased_";
  options.follow_caller = sampler.starts_with(kParent);
  const std::string kind = options.follow_caller ? sampler.substr(kParent.size()) : sampler;
  if (kind == "always_off") {
    options.ratio = 0;
  } else if (kind == "traceidratio") {
    const std::string text = variable("OTEL_TRACES_SAMPLER_ARG");
    char* end = nullptr;
    options.ratio = text.empty() ? 1 : std::strtod(text.c_str(), &end);
    if (!text.empty() && (*end != '\0' || !(options.ratio >= 0 && options.ratio <= 1)))
      fail(ErrorCode::kBadInput, "OTEL_TRACES_SAMPLER_ARG: '{}' is not a number from 0 to 1",
           quotable(text));
  } else if (kind != "always_on") {
    fail(ErrorCode::kBadInput,
         "OTEL_TRACES_SAMPLER: '{}': want always_on, always_off or traceidratio, or one of them "
         "after parentbased_",
         quotable(sampler));
  }
}

// ---- OTLP

OtlpJson text_attribute(const std::string& key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

OtlpJson number_attribute(const std::string& key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", std::to_string(value)}}}};
}

OtlpJson seconds_attribute(const std::string& key, double value) {
  return {{"key", key}, {"value", {{"doubleValue", value}}}};
}

std::string nanoseconds_after(std::chrono::system_clock::time_point begin, double seconds) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(begin.time_since_epoch());
  return std::to_string(since.count() + static_cast<int64_t>(std::max(seconds, 0.0) * 1e9));
}

OtlpJson request_attributes(const RequestTrace& trace) {
  OtlpJson list = OtlpJson::array(
      {text_attribute("gen_ai.operation.name",
                      trace.api == Api::kCompletions ? "text_completion" : "chat"),
       text_attribute("gen_ai.request.model", trace.model),
       text_attribute("gen_ai.response.model", trace.model),
       text_attribute("http.request.method", "POST"), text_attribute("http.route", trace.path),
       number_attribute("http.response.status_code", trace.status),
       number_attribute("gen_ai.usage.input_tokens", trace.usage.prompt),
       number_attribute("gen_ai.usage.output_tokens", trace.usage.completion),
       number_attribute("dsv4.usage.cached_tokens", trace.usage.cached),
       text_attribute("dsv4.request_id", trace.request_id),
       text_attribute("dsv4.finish", trace.finish),
       seconds_attribute("gen_ai.latency.time_in_queue", trace.times.queue),
       seconds_attribute("gen_ai.latency.e2e", trace.times.total)});
  if (trace.times.first_token >= 0)
    list.push_back(
        seconds_attribute("gen_ai.latency.time_to_first_token", trace.times.first_token));
  if (!trace.client_id.empty())
    list.push_back(text_attribute("dsv4.client_request_id", trace.client_id));
  return list;
}

// The spans of one request: its own, and those of its parts.
void append_spans(OtlpJson& spans, const RequestTrace& trace, const NewId& new_id) {
  const std::string trace_id = trace.parent ? trace.parent->trace_id : new_id(16),
                    span_id = new_id(8);
  const Times& times = trace.times;
  const bool began = times.first_token >= 0;
  OtlpJson span = {{"traceId", trace_id}, {"spanId", span_id}};
  if (trace.parent) span["parentSpanId"] = trace.parent->span_id;
  span.update({{"flags", 1},
               {"name", "POST " + trace.path},
               {"kind", kServer},
               {"startTimeUnixNano", nanoseconds_after(trace.begin, 0)},
               {"endTimeUnixNano", nanoseconds_after(trace.begin, times.total)},
               {"attributes", request_attributes(trace)}});
  if (trace.status >= 500) span["status"] = {{"code", kStatusError}, {"message", trace.finish}};
  spans.push_back(std::move(span));
  const auto part = [&](const char* name, double from, double to) {
    spans.push_back({{"traceId", trace_id},
                     {"spanId", new_id(8)},
                     {"parentSpanId", span_id},
                     {"flags", 1},
                     {"name", name},
                     {"kind", kInternal},
                     {"startTimeUnixNano", nanoseconds_after(trace.begin, from)},
                     {"endTimeUnixNano", nanoseconds_after(trace.begin, std::max(from, to))}});
  };
  part("queue", 0, began ? times.queue : times.total);
  if (!began) return;
  part("prefill", times.queue, times.first_token);
  part("decode", times.first_token, times.total);
}

int64_t spans_of(const std::vector<RequestTrace>& traces) {
  int64_t spans = 0;
  for (const RequestTrace& trace : traces) spans += trace.times.first_token >= 0 ? 4 : 2;
  return spans;
}

std::string random_hex(size_t bytes) {
  std::vector<uint8_t> id(bytes);
  do {  // an id of zeros means that there is none
    if (RAND_bytes(id.data(), static_cast<int>(bytes)) != 1) return std::string(2 * bytes, '1');
  } while (std::ranges::all_of(id, [](uint8_t byte) { return byte == 0; }));
  return hex_digits(id);
}

}  // namespace

bool is_sampled(const std::string& trace_id, double ratio) {
  if (ratio >= 1) return true;
  // The last 7 bytes count, as for OpenTelemetry's own samplers.
  const uint64_t low = std::stoull(trace_id.substr(18), nullptr, 16);
  return static_cast<double>(low) < ratio * std::exp2(56);
}

TraceOptions trace_options(const Variable& variable, const std::string& version) {
  TraceOptions options;
  const std::string disabled = lower_case(variable("OTEL_SDK_DISABLED"));
  const std::string exporter = variable("OTEL_TRACES_EXPORTER");
  if (disabled == "true" || exporter == "none") return {};
  if (!exporter.empty() && exporter != "otlp")
    fail(ErrorCode::kBadInput, "OTEL_TRACES_EXPORTER: '{}': want otlp or none", quotable(exporter));
  options.endpoint = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  if (options.endpoint.empty()) {
    std::string base = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
    if (base.empty()) return {};
    while (base.ends_with('/')) base.pop_back();
    options.endpoint = base + "/v1/traces";
  }
  parse_http_url(options.endpoint);  // throws
  if (const std::string protocol = either(variable, "PROTOCOL");
      !protocol.empty() && protocol != "http/json")
    fail(ErrorCode::kBadInput,
         "OTEL_EXPORTER_OTLP_PROTOCOL: '{}': this program speaks OTLP over HTTP (port 4318), whose "
         "collectors take JSON: want http/json",
         quotable(protocol));
  options.headers = pairs_of("OTEL_EXPORTER_OTLP_HEADERS", either(variable, "HEADERS"));
  if (const std::string timeout = either(variable, "TIMEOUT"); !timeout.empty())
    options.timeout = std::chrono::milliseconds(
        number_of([&](const char*) { return timeout; }, "OTEL_EXPORTER_OTLP_TIMEOUT", 10'000));
  options.resource = {{"service.name", "dsv4"}, {"service.version", version}};
  for (const auto& [key, value] :
       pairs_of("OTEL_RESOURCE_ATTRIBUTES", variable("OTEL_RESOURCE_ATTRIBUTES")))
    options.resource[key] = value;
  if (const std::string name = variable("OTEL_SERVICE_NAME"); !name.empty())
    options.resource["service.name"] = name;
  read_sampler(variable, options);
  options.delay = std::chrono::milliseconds(number_of(variable, "OTEL_BSP_SCHEDULE_DELAY", 5'000));
  options.most_waiting = static_cast<size_t>(number_of(variable, "OTEL_BSP_MAX_QUEUE_SIZE", 2048));
  options.most_in_batch =
      std::min(options.most_waiting,
               static_cast<size_t>(number_of(variable, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)));
  return options;
}

std::string encode_traces(const std::vector<RequestTrace>& traces, const TraceOptions& options,
                          const std::string& version, const NewId& new_id) {
  OtlpJson spans = OtlpJson::array(), attributes = OtlpJson::array();
  for (const RequestTrace& trace : traces) append_spans(spans, trace, new_id);
  for (const auto& [key, value] : options.resource)
    attributes.push_back(text_attribute(key, value));
  OtlpJson scope = {{"scope", {{"name", "dsv4"}, {"version", version}}},
                    {"spans", std::move(spans)}};
  OtlpJson resource = {{"resource", {{"attributes", std::move(attributes)}}},
                       {"scopeSpans", OtlpJson::array({std::move(scope)})}};
  return OtlpJson{{"resourceSpans", OtlpJson::array({std::move(resource)})}}.dump(
      -1, ' ', false, OtlpJson::error_handler_t::replace);
}

TraceExporter::TraceExporter(const TraceOptions& options, std::string version)
    : options_(options),
      version_(std::move(version)),
      url_(parse_http_url(options.endpoint)),
      thread_(start_thread("the thread of the traces", [this] { run(); })) {
}

TraceExporter::~TraceExporter() {
  {
    const std::lock_guard lock(mutex_);
    last_send_by_ = Clock::now() + kLastSend;
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void TraceExporter::add(RequestTrace trace) {
  const bool callers = trace.parent && options_.follow_caller;
  if (callers && !trace.parent->sampled) return;
  if (!callers && options_.ratio < 1) {
    const std::string id = trace.parent ? trace.parent->trace_id : random_hex(16);
    if (!is_sampled(id, options_.ratio)) return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= options_.most_waiting) {
      dropped_ += spans_of({trace});
      return;
    }
    waiting_.push_back(std::move(trace));
    if (waiting_.size() < options_.most_in_batch) return;
  }
  wake_.notify_all();
}

std::vector<RequestTrace> TraceExporter::take() {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, options_.delay,
                 [this] { return stopping_ || waiting_.size() >= options_.most_in_batch; });
  std::vector<RequestTrace> traces;
  while (!waiting_.empty() && traces.size() < options_.most_in_batch) {
    traces.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return traces;
}

void TraceExporter::run() {
  for (;;) {
    const std::vector<RequestTrace> traces = take();
    if (traces.empty()) {
      if (stopping_) return;
      continue;
    }
    (send(traces) ? exported_ : dropped_) += spans_of(traces);
  }
}

// False where the collector did not take them in time. One line of the log when that begins.
bool TraceExporter::send(const std::vector<RequestTrace>& traces) {
  const auto deadline = Clock::now() + options_.timeout;
  const HttpCall post{.body = encode_traces(traces, options_, version_, random_hex),
                      .headers = options_.headers,
                      .stopped = [&] {
                        return Clock::now() > deadline ||
                               (stopping_ && Clock::now() > last_send_by_);
                      }};
  std::string error;
  try {
    const HttpReply reply = call(url_, post);
    if (reply.stopped) error = "no answer in time";
    if (!reply.stopped && (reply.status < 200 || reply.status > 299))
      error = fmt::format("status {}", reply.status);
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  if (!error.empty() && !std::exchange(failed_, true))
    log_line("traces", {{"collector", short_text(url_.text())}, {"error", short_text(error)}});
  if (error.empty() && std::exchange(failed_, false))
    log_line("traces", {{"collector", short_text(url_.text())}, {"state", "works again"}});
  return error.empty();
}

}  // namespace dsv4::apps
