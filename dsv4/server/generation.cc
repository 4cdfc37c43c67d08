#include "dsv4/server/generation.h"

#include <algorithm>

namespace dsv4 {
namespace {

// Where other conversations with the same system prompt and tools part from this one, and where
// this one does when its last turn is written again.
std::vector<int64_t> forks_of(const std::vector<int32_t>& prompt, const MarkerIds& markers) {
  const auto user = markers.id(Marker::kUser);
  if (!user) return {};
  const auto first = std::find(prompt.begin(), prompt.end(), *user);
  if (first == prompt.end()) return {};
  const auto last = std::find(prompt.rbegin(), prompt.rend(), *user).base() - 1;
  return {first - prompt.begin(), last - prompt.begin()};
}

}  // namespace

Generation::Generation(Prepared prepared, std::shared_ptr<const ServedModel> model,
                       std::shared_ptr<Exchange> exchange, Origin origin)
    : prepared_(std::move(prepared)),
      model_(std::move(model)),
      exchange_(std::move(exchange)),
      shown_id_(prepared_.answer.request_id) {
  for (const auto& prompt : prepared_.prompts) usage_.prompt += static_cast<int64_t>(prompt.size());
  prepared_.answer.usage = &usage_;
  prepared_.answer.times = &report_.times;
  report_ = {.api = prepared_.api,
             .request_id = std::move(origin.request_id),
             .key = std::move(origin.key),
             .user = prepared_.settings.user,
             .client_id = std::move(origin.client_id),
             .path = std::move(origin.path),
             .model = prepared_.answer.model,
             .caller = std::move(origin.caller),
             .begin = std::chrono::system_clock::now(),
             .stream = prepared_.settings.stream};
  const size_t count = prepared_.answer.choices;
  writer_ = make_writer(prepared_.api, std::move(prepared_.answer));
  for (size_t k = 0; k < count; ++k)
    choices_.push_back(std::make_unique<Choice>(k, prepared_, *model_, *writer_, usage_));
  jobs_.resize(count);
}

GenerateParams Generation::job_params(size_t choice) const {
  GenerateParams params{.sampling = prepared_.settings.sampling,
                        .max_new_tokens = prepared_.max_tokens,
                        .min_new_tokens = prepared_.settings.min_tokens,
                        .stop = prepared_.settings.stop_ids,
                        .logit_bias = prepared_.settings.logit_bias,
                        .constraint = prepared_.constraint,
                        .salt = prepared_.settings.salt,
                        .forks = forks_of(job_prompt(choice), model_->markers),
                        .score_prompt = prepared_.settings.echo && prepared_.settings.logprobs,
                        .prediction = prepared_.prediction,
                        .speculate = prepared_.settings.speculate};
  if (!prepared_.settings.ignore_eos)
    params.stop.insert(params.stop.end(), model_->limits.eos.begin(), model_->limits.eos.end());
  params.sampling.seed += choice % static_cast<size_t>(prepared_.settings.n);
  return params;
}

const std::vector<int32_t>& Generation::job_prompt(size_t choice) const {
  return prepared_.prompts[choice / static_cast<size_t>(prepared_.settings.n)];
}

double Generation::seconds_since_begin() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

void Generation::begin(HttpHeaders headers) {
  headers_ = std::move(headers);
  writer_->begin();
  if (!prepared_.settings.stream) return;
  HttpResponse head{.status = 200,
                    .headers = headers_,
                    .content_type = writer_->stream_type(),
                    .body = writer_->take()};
  head.headers.emplace_back("Cache-Control", "no-store");
  head.headers.emplace_back("X-Accel-Buffering", "no");
  exchange_->begin_stream(std::move(head));
  last_write_ = Clock::now();
}

void Generation::on_event(size_t choice, const EngineEvent& event) {
  if (over_) return;
  switch (event.kind) {
    case EngineEvent::Kind::kStarted:
      if (!started_) report_.times.queue = seconds_since_begin();
      started_ = true;
      if (choice % static_cast<size_t>(prepared_.settings.n) == 0)  // once a prompt
        usage_.cached += event.cached_tokens;
      break;
    case EngineEvent::Kind::kPromptToken:
      choices_[choice]->on_prompt_token(event.token);
      break;
    case EngineEvent::Kind::kDrafts:
      if (!choices_[choice]->ended()) count_prediction(event.drafts);
      break;
    case EngineEvent::Kind::kToken: {
      const auto now = Clock::now();
      if (report_.times.first_token < 0) {
        report_.times.first_token = seconds_since_begin();
      } else if (choices_.size() == 1) {
        intervals_.push_back(std::chrono::duration<double>(now - last_token_).count());
      }
      last_token_ = now;
      choices_[choice]->on_token(event.token);
      break;
    }
    case EngineEvent::Kind::kFinished:
      if (event.finish == Finish::kConstraintFailed) {
        // The client's grammar did it; the server and other answers are fine.
        fail({.status = 400,
              .code = "grammar_error",
              .message =
                  "the grammar of this answer reads its text in too many ways at once, became "
                  "too large, or allows no further token: make it smaller or less ambiguous"});
        break;
      }
      choices_[choice]->on_engine_finish(event.finish);
      break;
    case EngineEvent::Kind::kFailed:
      fail({.status = 500, .code = "engine_error", .message = "the engine failed"});
      break;
  }
}

void Generation::count_prediction(const DraftCounts& drafts) {
  constexpr auto kSource = static_cast<size_t>(DraftSource::kPrediction);
  usage_.accepted_prediction += drafts.accepted[kSource];
  usage_.rejected_prediction += drafts.drafted[kSource] - drafts.accepted[kSource];
}

void Generation::flush() {
  end_if_complete();
  if (over_ || !prepared_.settings.stream) return;
  const std::string piece = writer_->take();
  if (piece.empty()) return;
  exchange_->write(piece);
  last_write_ = Clock::now();
}

void Generation::end_if_complete() {
  if (over_) return;
  for (const auto& choice : choices_) {
    if (!choice->ended()) return;
  }
  report_.times.total = seconds_since_begin();
  writer_->end();
  if (prepared_.settings.stream) {
    exchange_->write(writer_->take());
    exchange_->end_stream();
  } else {
    exchange_->respond({.headers = headers_, .body = writer_->take()});
  }
  close_report(200, name(choices_[0]->end().reason));
}

void Generation::on_tick(Clock::time_point now, std::chrono::milliseconds keep_alive) {
  if (over_) return;
  const auto deadline = std::chrono::milliseconds(prepared_.settings.deadline_ms);
  if (deadline.count() > 0 && now - begin_ > deadline) {
    if (!started_) {
      return fail({.status = 504,
                   .code = "deadline",
                   .param = "deadline_ms",
                   .message = "the deadline passed while the request waited"});
    }
    return finish_early();
  }
  if (prepared_.settings.stream && now - last_write_ > keep_alive) {
    if (const std::string piece = writer_->keep_alive(); !piece.empty()) exchange_->write(piece);
    last_write_ = now;
  }
}

void Generation::finish_early() {
  for (const auto& choice : choices_) choice->end_at_deadline();
  flush();
}

void Generation::fail(const ApiError& error) {
  if (over_) return;
  const int status = status_of(prepared_.api, error);
  if (prepared_.settings.stream) {
    writer_->fail(error);
    exchange_->write(writer_->take());
    exchange_->end_stream();
  } else {
    HttpResponse response{
        .status = status, .headers = headers_, .body = error_body(prepared_.api, error, shown_id_)};
    if (error.retry_after > 0)
      response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
    exchange_->respond(std::move(response));
  }
  close_report(status, "error");
}

void Generation::client_disconnected() {
  if (!over_) close_report(499, "disconnect");
}

void Generation::close_report(int status, const std::string& finish) {
  over_ = true;
  report_.status = status;
  report_.finish = finish;
  report_.usage = usage_;
  report_.times.total = seconds_since_begin();
  for (const auto& choice : choices_) {
    const ParseCounts& counts = choice->counts();
    report_.parsed.calls += counts.calls;
    report_.parsed.repaired += counts.repaired;
    report_.parsed.truncated += counts.truncated;
    report_.parsed.unknown += counts.unknown;
  }
}

}  // namespace dsv4
