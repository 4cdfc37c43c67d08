#include "dsv4/engine/engine.h"

#include <algorithm>
#include <chrono>

#include "dsv4/base/error.h"
#include "dsv4/engine/score.h"

namespace dsv4 {

const char* name(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

namespace {

const EngineOptions& checked(const Model& model, const EngineOptions& options) {
  DSV4_CHECK(options.max_tokens >= 1 && options.max_sequences >= 1,
             "max_tokens={} max_sequences={}", options.max_tokens, options.max_sequences);
  DSV4_CHECK(options.max_batch_tokens >= options.max_sequences,
             "max_batch_tokens={} below max_sequences={}", options.max_batch_tokens,
             options.max_sequences);
  if (options.numerics == Numerics::kOfficial) check_official_numerics(model.config());
  return options;
}

CacheLimits limits_of(const EngineOptions& options) {
  return {.max_tokens = options.max_tokens,
          .max_sequences = options.max_sequences,
          .max_batch_tokens = options.max_batch_tokens};
}

}  // namespace

int64_t cache_bytes(const Model& model, const EngineOptions& options) {
  return plan_cache(model.config(), checked(model, options).numerics, limits_of(options))
      .plan.bytes();
}

Engine::Engine(const Model& model, const EngineOptions& options)
    : model_(model),
      options_(checked(model, options)),
      executor_(
          model,
          Context{.numerics = options.numerics, .need_batch_invariant = options.deterministic},
          limits_of(options)) {
}

RequestId Engine::submit(std::span<const int32_t> prompt, const GenerateParams& params,
                         TokenSink& sink) {
  if (prompt.empty()) fail(ErrorCode::kBadInput, "the prompt is empty");
  check_token_ids(prompt, model_.config().vocab_size);
  if (params.max_new_tokens < 1)
    fail(ErrorCode::kBadInput, "max_new_tokens must be at least 1, got {}", params.max_new_tokens);
  const auto length = static_cast<int64_t>(prompt.size());
  const auto fits = [&](int64_t room) {
    return length < room && params.max_new_tokens <= room - length;
  };
  if (!fits(model_.config().max_positions)) {
    fail(ErrorCode::kBadInput,
         "prompt of {} tokens and answer of up to {} exceed the model's {} positions", length,
         params.max_new_tokens, model_.config().max_positions);
  }
  if (!fits(options_.max_tokens)) {
    fail(ErrorCode::kBadInput,
         "prompt of {} tokens and answer of up to {} do not fit the cache of {} tokens", length,
         params.max_new_tokens, options_.max_tokens);
  }
  const auto id = static_cast<RequestId>(next_id_++);
  waiting_.push_back(
      {.id = id, .prompt = {prompt.begin(), prompt.end()}, .params = params, .sink = &sink});
  return id;
}

void Engine::cancel(RequestId id) {
  for (Request& request : waiting_) request.cancelled |= request.id == id;
  for (Request& request : running_) request.cancelled |= request.id == id;
}

void Engine::drop_cancelled(std::vector<Event>& events) {
  const auto drop = [&](const Request& request) {
    if (!request.cancelled) return false;
    events.push_back(
        {.sink = request.sink, .id = request.id, .finished = true, .why = Finish::kCancelled});
    return true;
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), drop), waiting_.end());
  running_.remove_if([&](const Request& request) {
    if (request.cancelled) executor_.cache().close(request.seq);
    return drop(request);
  });
}

void Engine::admit() {
  while (!waiting_.empty() && executor_.cache().num_open() < options_.max_sequences) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    running_.back().seq = executor_.cache().open();
  }
}

Engine::Batch Engine::schedule() {
  Batch batch;
  int64_t budget = options_.max_batch_tokens;
  for (Request& request : running_) {
    if (!request.decoding()) continue;
    batch.work.push_back({request.seq, {&request.last, 1}, Work::Logits::kLast});
    batch.sampled.push_back(&request);
    --budget;
  }
  for (Request& request : running_) {
    if (request.decoding() || budget <= 0) continue;
    const std::span<const int32_t> rest =
        std::span<const int32_t>(request.prompt).subspan(static_cast<size_t>(request.prefilled));
    const auto count = std::min(static_cast<int64_t>(rest.size()), budget);
    const bool last = count == static_cast<int64_t>(rest.size());
    batch.work.push_back({request.seq, rest.first(static_cast<size_t>(count)),
                          last ? Work::Logits::kLast : Work::Logits::kNone});
    if (last) batch.sampled.push_back(&request);
    batch.chunks.push_back({&request, count});
    budget -= count;
  }
  return batch;
}

Engine::Event Engine::accept(Request& request, int32_t token, float logprob) {
  Event event{.sink = request.sink, .id = request.id};
  const std::vector<int32_t>& stop = request.params.stop;
  if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
    event.finished = true;
    event.why = Finish::kStop;
    return event;
  }
  request.last = token;
  ++request.generated;
  event.has_token = true;
  event.token = token;
  event.logprob = logprob;
  event.finished = request.generated == request.params.max_new_tokens;
  event.why = Finish::kLength;
  return event;
}

std::vector<Sampled> Engine::sample(const Batch& batch) {
  if (batch.sampled.empty()) return {};
  std::vector<SamplingParams> params;
  std::vector<uint64_t> steps;
  for (const Request* request : batch.sampled) {
    params.push_back(request->params.sampling);
    steps.push_back(static_cast<uint64_t>(request->generated));
  }
  return executor_.sample(params, steps);
}

void Engine::deliver(const Batch& batch, std::span<const Sampled> tokens,
                     std::vector<Event>& events) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    Request& request = *batch.sampled[i];
    events.push_back(accept(request, tokens[i].id, tokens[i].logprob));
    if (!events.back().finished) continue;
    executor_.cache().close(request.seq);
    running_.remove_if([id = request.id](const Request& other) { return other.id == id; });
  }
}

bool Engine::step() {
  if (broken_)
    fail(ErrorCode::kUnsupported,
         "an earlier step failed and left the caches half-written: start a new engine");
  std::vector<Event> events;
  drop_cancelled(events);
  admit();
  const bool busy = !running_.empty();
  if (busy) run_batch(events);
  for (const Event& event : events) {
    if (event.has_token) event.sink->on_token(event.id, event.token, event.logprob);
    if (event.finished) event.sink->on_finish(event.id, event.why);
  }
  return busy || !running_.empty() || !waiting_.empty();
}

void Engine::run_batch(std::vector<Event>& events) {
  const Batch batch = schedule();
  const auto begin = std::chrono::steady_clock::now();
  broken_ = true;  // until the step has run: a forward pass that stops half-way leaves caches
                   // half-written
  executor_.start(batch.work);
  const std::vector<Sampled> tokens = sample(batch);
  broken_ = false;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  ++stats_.steps;
  for (const Batch::Chunk& chunk : batch.chunks) {
    chunk.request->prefilled += chunk.count;
    stats_.prefill_tokens += chunk.count;
  }
  if (batch.chunks.empty()) stats_.decode_tokens += static_cast<int64_t>(batch.work.size());
  (batch.chunks.empty() ? stats_.decode_seconds : stats_.prefill_seconds) += spent.count();
  deliver(batch, tokens, events);
}

}  // namespace dsv4
