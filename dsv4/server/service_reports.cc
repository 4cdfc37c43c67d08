// What the log and the metrics get of a request when it is over.

#include "dsv4/base/ascii.h"
#include "dsv4/chat/sha256.h"
#include "dsv4/server/known_fields.h"
#include "dsv4/server/server_log.h"
#include "dsv4/server/service.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

constexpr size_t kWaits = 64, kMaxLoggedFields = 256;
constexpr std::chrono::hours kLogFieldAgain{24};
constexpr std::chrono::minutes kTlsLogAgain{1};

// What a client calls its user, so that its requests can be found in the log but not its name.
std::string user_hash(const std::string& user) {
  return user.empty() ? "" : hex_digits(sha256(user)).substr(0, 16);
}

}  // namespace

// One line a day for each field: an agent sends the same ones with every request.
void Service::log_ignored(const Prepared& prepared) {
  if (!options_.log_requests) return;
  const auto now = Clock::now();
  for (const std::string& field : prepared.ignored) {
    const auto found = logged_fields_.find(field);
    if (found != logged_fields_.end() && now - found->second < kLogFieldAgain) continue;
    if (found == logged_fields_.end() && logged_fields_.size() >= kMaxLoggedFields) continue;
    logged_fields_[field] = now;
    log_line("ignored_field", {{"field", short_text(field)}, {"api", name(prepared.api)}});
  }
}

// A client that speaks TLS gets an answer that it cannot read.
void Service::log_tls_clients(Clock::time_point now) {
  const int64_t seen = http_->counters().tls_hellos;
  if (seen == tls_logged_ || now < next_tls_log_) return;
  log_line("tls_client", {{"connections", seen - tls_logged_},
                          {"hint", "this port speaks HTTP: use http://, or a proxy with TLS"}});
  tls_logged_ = seen;
  next_tls_log_ = now + kTlsLogAgain;
}

// Codes are words of this program, so there are few of them.
void Service::count_rejection(const ApiError& error) {
  metrics_.add("dsv4_rejections_total", 1,
               fmt::format("code=\"{}\",reason=\"{}\"", error.status,
                           error.code.empty() ? error_type(error.status) : error.code));
}

void Service::remove(const std::shared_ptr<Generation>& generation) {
  if (generations_.erase(generation->request_id()) == 0) return;
  for (const JobId job : generation->jobs()) {
    if (jobs_.erase(job) > 0) engine_->cancel(job);
  }
  const Generation::Report& report = generation->report();
  metrics_.add("dsv4_requests_total", 1,
               fmt::format("finish=\"{}\",api=\"{}\",code=\"{}\"", report.finish, name(report.api),
                           report.status));
  metrics_.add("dsv4_prompt_tokens_total", static_cast<double>(report.usage.prompt));
  metrics_.add("dsv4_generated_tokens_total", static_cast<double>(report.usage.completion));
  metrics_.observe("dsv4_e2e_seconds", report.times.total);
  metrics_.observe("dsv4_queue_seconds", report.times.queue);
  if (report.times.first_token >= 0)
    metrics_.observe("dsv4_ttft_seconds", report.times.first_token);
  if (report.times.first_token >= 0)
    metrics_.observe("dsv4_prefill_seconds", report.times.first_token - report.times.queue);
  const ParseCounts& parsed = report.parsed;
  const auto count = [&](const char* kind, int64_t calls) {
    if (calls > 0)
      metrics_.add("dsv4_tool_parse_total", static_cast<double>(calls),
                   fmt::format("kind=\"{}\"", kind));
  };
  count("ok", parsed.calls - parsed.repaired);
  count("repaired", parsed.repaired);
  count("truncated", parsed.truncated);
  count("unknown_tool", parsed.unknown);
  trace(*generation);
  waits_.push_back(report.times.queue);
  if (waits_.size() > kWaits) waits_.pop_front();
  if (!options_.log_requests) return;
  Json line = {{"id", report.request_id},
               {"key", short_text(report.key)},
               {"user", user_hash(report.user)},
               {"api", name(report.api)},
               {"status", report.status},
               {"finish", report.finish},
               {"stream", report.stream},
               {"prompt_tokens", report.usage.prompt},
               {"completion_tokens", report.usage.completion},
               {"queue_s", report.times.queue},
               {"ttft_s", report.times.first_token},
               {"total_s", report.times.total}};
  if (!report.client_id.empty()) line["client_request_id"] = report.client_id;
  if (report.caller) line["trace_id"] = report.caller->trace_id;
  if (options_.log_content) add_content(*generation, line);
  log_line("request", line);
}

void Service::trace(const Generation& generation) const {
  if (!options_.on_trace) return;
  const Generation::Report& report = generation.report();
  options_.on_trace({.begin = report.begin,
                     .times = report.times,
                     .parent = report.caller,
                     .api = report.api,
                     .path = report.path,
                     .model = report.model,
                     .request_id = report.request_id,
                     .client_id = report.client_id,
                     .finish = report.finish,
                     .status = report.status,
                     .usage = report.usage});
}

void Service::add_content(const Generation& generation, Json& line) const {
  const auto text = [&](const std::vector<int32_t>& ids) {
    return utf8_lossy(model_->tokenizer->decode(ids));
  };
  for (const auto& prompt : generation.prompts()) line["prompts"].push_back(text(prompt));
  for (size_t k = 0; k < generation.choices(); ++k)
    line["answers"].push_back(text(generation.answer_ids(k)));
}

}  // namespace dsv4
