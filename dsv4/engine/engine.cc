#include "dsv4/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/engine/fingerprint.h"
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
    case Finish::kConstraintFailed:
      return "blocked";
  }
  return "unknown";
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLeastJunction = 256;  // tokens; of fewer, a checkpoint costs more than it spares

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

const EngineOptions& checked(const Model& model, const EngineOptions& options) {
  DSV4_CHECK(options.max_tokens >= 1 && options.max_sequences >= 1,
             "max_tokens={} max_sequences={}", options.max_tokens, options.max_sequences);
  DSV4_CHECK(options.max_batch_tokens >= options.max_sequences,
             "max_batch_tokens={} below max_sequences={}", options.max_batch_tokens,
             options.max_sequences);
  DSV4_CHECK(options.cache_tokens == 0 || options.cache_tokens >= options.max_tokens,
             "cache_tokens={} below max_tokens={}", options.cache_tokens, options.max_tokens);
  DSV4_CHECK(options.prefix_checkpoints >= 0 && options.checkpoint_interval >= 1,
             "prefix_checkpoints={} checkpoint_interval={}", options.prefix_checkpoints,
             options.checkpoint_interval);
  DSV4_CHECK(options.tiers.ram_bytes == 0 || options.prefix_checkpoints > 0,
             "{} bytes of host memory for prefixes of an engine without checkpoints",
             options.tiers.ram_bytes);
  DSV4_CHECK(options.tiers.folder.empty() ||
                 (options.tiers.ram_bytes > 0 && !options.model_identity.empty()),
             "a folder for prefixes, with {} bytes of host memory and the identity '{}'",
             options.tiers.ram_bytes, options.model_identity);
  DSV4_CHECK(options.max_scored_tokens >= 0, "max_scored_tokens={}", options.max_scored_tokens);
  if (options.numerics == Numerics::kOfficial) check_official_numerics(model.config());
  return options;
}

CacheLimits limits_of(const EngineOptions& options) {
  return {.max_tokens = options.max_tokens,
          .max_sequences = options.max_sequences,
          .max_batch_tokens = options.max_batch_tokens,
          .max_logits_rows = options.max_sequences + options.max_scored_tokens,
          .cache_tokens = options.cache_tokens,
          .checkpoints = options.prefix_checkpoints};
}

// Leaves the mask as it is where it allows nothing else.
void forbid(std::span<const int32_t> ids, std::span<uint32_t> mask) {
  std::vector<uint32_t> left(mask.begin(), mask.end());
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<size_t>(id) / 32 < left.size())
      left[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (id % 32));
  }
  const bool any = std::ranges::any_of(left, [](uint32_t word) { return word != 0; });
  if (any) std::ranges::copy(left, mask.begin());
}

}  // namespace

Context step_context(const EngineOptions& options) {
  return {.numerics = options.numerics,
          .need_batch_invariant = options.deterministic,
          .choices = options.choices};
}

int64_t cache_bytes(const Model& model, const EngineOptions& options) {
  const CacheLimits limits = limits_of(options);
  const CachePlan plan = plan_cache(model.config(), checked(model, options).numerics, limits).plan;
  return plan.bytes() + limits.checkpoints * prefix_state_bytes(plan.states);
}

Engine::Engine(const Model& model, const EngineOptions& options)
    : model_(model),
      options_(checked(model, options)),
      check_(options.check_numbers ? std::make_unique<CheckNumbers>(model) : nullptr),
      executor_(model, context(), limits_of(options)) {
  if (options.tiers.ram_bytes == 0) return;
  const Digest fingerprint =
      cache_fingerprint(options.model_identity, model, context(), executor_.cache_plan());
  executor_.prefixes()->open_tiers(options.tiers, fingerprint);
}

Context Engine::context() const {
  Context context = step_context(options_);
  context.observer = check_.get();
  return context;
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
  if (params.score_prompt && options_.max_scored_tokens == 0)
    fail(ErrorCode::kUnsupported,
         "this engine scores no prompts (EngineOptions::max_scored_tokens)");
  check_sampling(params.sampling, params.logit_bias, model_.config().vocab_size);
  const auto id = static_cast<RequestId>(next_id_++);
  requests_.push_back({.id = id,
                       .tokens = {prompt.begin(), prompt.end()},
                       .params = params,
                       .sink = &sink,
                       .terms = {params.sampling, params.logit_bias, prompt},
                       .state = params.constraint ? params.constraint->start() : 0,
                       .submitted = Clock::now()});
  if (const UnitStore* units = this->units())
    requests_.back().chain = PrefixChain(units->fingerprint(), params.salt, units->layout().step);
  return id;
}

void Engine::cancel(RequestId id) {
  for (Request& request : requests_) request.cancelled |= request.id == id;
}

void Engine::end_early(std::vector<Event>& events) {
  const auto now = Clock::now();
  size_t index = 0;
  for (auto at = requests_.begin(); at != requests_.end();) {
    if (!at->cancelled && now < at->params.deadline) {
      ++at, ++index;
      continue;
    }
    finish(*at, at->cancelled ? Finish::kCancelled : Finish::kLength, events.emplace_back());
    at = remove(at, index);
  }
}

std::list<Engine::Request>::iterator Engine::remove(std::list<Request>::iterator at, size_t index) {
  if (index < num_running_) {
    stop_running(*at);
    --num_running_;
  }
  return requests_.erase(at);
}

// Its sequence ends; what its answer has computed stays stored.
void Engine::stop_running(Request& request) {
  if (request.answer_checkpoint != CheckpointId::kNone)
    save_units(request, request.answer_checkpoint);
  request.answer_checkpoint = CheckpointId::kNone;
  executor_.cache().close(request.seq);
  request.cached = 0;
}

bool Engine::Request::before(const Request& other) const {
  constexpr int kMostPreemptions = 3;
  const bool kept = stats.preemptions >= kMostPreemptions,
             other_kept = other.stats.preemptions >= kMostPreemptions;
  return std::tuple(!kept, -params.priority, id) <
         std::tuple(!other_kept, -other.params.priority, other.id);
}

// Those that run keep standing before the others.
void Engine::sort_requests() {
  auto waiting = requests_.begin();
  std::advance(waiting, num_running_);
  std::list<Request> others;
  others.splice(others.end(), requests_, waiting, requests_.end());
  const auto sort = [](std::list<Request>& requests) {
    const auto before = [](const Request& a, const Request& b) { return a.before(b); };
    if (!std::ranges::is_sorted(requests, before)) requests.sort(before);
  };
  sort(requests_);
  sort(others);
  requests_.splice(requests_.end(), others);
}

Schedule Engine::plan_step() {
  // Requests after these cannot run in this step: there are no more slots.
  const size_t slots = static_cast<size_t>(options_.max_sequences);
  const PrefixCache* prefixes = executor_.prefixes();
  std::vector<ScheduledRequest> requests;
  for (Request& request : requests_) {
    const bool waits = requests.size() >= num_running_ && prefixes != nullptr;
    if (requests.size() == slots || (waits && loading(request))) break;
    int64_t cached = request.cached;
    if (waits) {
      const PrefixCache::Match match = prefixes->match(request.params.salt, reusable(request));
      cached = std::max(match.tokens, request.lease == nullptr ? 0 : request.lease->tokens());
      request.junction = match.common - cached >= kLeastJunction ? match.common : 0;
    }
    requests.push_back(
        {.tokens = request.length(),
         .cached = cached,
         .answer_left = request.params.max_new_tokens - request.generated,
         .decoding = request.decoding(),
         .stop_at = next_stop(request, cached, waits ? cached : request.last_checkpoint)});
  }
  const PageTables& tables = executor_.cache();
  std::vector<SeqId> running;  // in order
  for (const Request& request : requests_) {
    if (running.size() == num_running_) break;
    running.push_back(request.seq);
  }
  const auto own_pages = [&](size_t i, size_t g) {
    return tables.own_pages(running[i], static_cast<int>(g), std::span(running).first(i));
  };
  std::vector<int64_t> free_pages;
  for (int g = 0; g < static_cast<int>(tables.groups().size()); ++g)
    free_pages.push_back(tables.free_pages(g) + tables.idle_pages(g));
  return schedule({.requests = requests,
                   .num_running = num_running_,
                   .groups = tables.groups(),
                   .free_pages = free_pages,
                   .own_pages = own_pages},
                  {.max_batch_tokens = options_.max_batch_tokens,
                   .max_prompt_tokens = max_prompt_tokens(),
                   .max_sequences = options_.max_sequences,
                   .long_prompt = options_.long_prompt,
                   .chunk_step = checkpoint_step(tables.groups())});
}

int64_t Engine::max_prompt_tokens() const {
  constexpr int64_t kLeast = 32;  // a small step costs nearly as much
  if (options_.longest_step.count() == 0) return 0;
  const double seconds = std::chrono::duration<double>(options_.longest_step).count();
  return step_time_.tokens_within(seconds, kLeast, options_.max_batch_tokens);
}

void Engine::set_running(size_t num_running, std::vector<Event>& events) {
  auto at = requests_.begin();
  std::advance(at, std::min(num_running, num_running_));
  PrefixCache* prefixes = executor_.prefixes();
  for (; num_running_ < num_running; ++num_running_, ++at) {
    at->seq = executor_.cache().open();
    if (prefixes != nullptr) {
      const PrefixCache::Attached attached =
          prefixes->attach(at->seq, at->params.salt, reusable(*at), at->lease.get());
      if (attached.ram + attached.disk > 0) leases_in_use_.push_back(std::move(at->lease));
      at->lease.reset();
      at->cached = attached.tokens;
      stats_.ram_tokens += attached.ram;
      stats_.disk_tokens += attached.disk;
      if (!at->started) at->stats.ram_tokens = attached.ram, at->stats.disk_tokens = attached.disk;
    }
    at->last_checkpoint = at->cached;
    stats_.cached_tokens += at->cached;
    if (at->started) continue;
    events.push_back({.sink = at->sink, .id = at->id, .starts = true, .cached_tokens = at->cached});
    at->started = true;
    at->first_run = Clock::now();
    at->stats.queue_seconds = seconds_between(at->submitted, at->first_run);
    at->stats.prompt_tokens = at->length();
    at->stats.cached_tokens = at->cached;
  }
  for (; num_running_ > num_running; --num_running_, ++at) {
    stop_running(*at);
    at->lookups = 0;
    ++at->stats.preemptions;
    ++stats_.preemptions;
  }
}

Engine::Batch Engine::make_batch(const Schedule& plan) {
  std::vector<Request*> running;
  for (Request& request : requests_) {
    if (running.size() == num_running_) break;
    running.push_back(&request);
  }
  Batch batch;
  int64_t spare_rows = options_.max_scored_tokens;  // besides one for each request
  for (const Schedule::Chunk& chunk : plan.chunks) {
    Request& request = *running[chunk.request];
    const std::span<const int32_t> rest =
        std::span<const int32_t>(request.tokens).subspan(static_cast<size_t>(request.cached));
    int64_t count = chunk.count;
    const bool scoring = request.scoring();
    if (scoring) count = std::min(count, 1 + spare_rows);
    const bool last = count == static_cast<int64_t>(rest.size());
    batch.work.push_back({request.seq, rest.first(static_cast<size_t>(count)),
                          scoring ? Work::Logits::kAll
                          : last  ? Work::Logits::kLast
                                  : Work::Logits::kNone,
                          checkpoint_after(request, count)});
    batch.chunks.push_back({&request, count});
    if (scoring) {
      spare_rows -= count - 1;
      for (int64_t i = 1; i <= count - last; ++i)
        batch.rows.push_back({&request, request.cached + i});
    }
    if (last) batch.rows.push_back({&request, 0});
    if (!request.decoding()) batch.prefill_tokens += count;
  }
  return batch;
}

void Engine::finish(const Request& request, Finish why, Event& event) {
  event.sink = request.sink;
  event.id = request.id;
  event.finished = true;
  event.why = why;
  event.stats = request.stats;
  event.stats.answer_tokens = request.generated;
  if (request.started) return;
  event.stats.queue_seconds = seconds_between(request.submitted, Clock::now());
  event.stats.prompt_tokens = request.length();
}

Engine::Event Engine::accept(Request& request, Sampled token) {
  Event event{.sink = request.sink, .id = request.id, .finished = true, .why = Finish::kStop};
  const std::vector<int32_t>& stop = request.params.stop;
  const bool stopped = std::find(stop.begin(), stop.end(), token.id) != stop.end();
  if (!stopped && !request.blocked) request.advance(token.id);
  if (request.blocked) event.why = Finish::kConstraintFailed;
  if (stopped || request.blocked || request.state == TokenConstraint::kEnded) return event;
  request.tokens.push_back(token.id);
  request.terms.add(token.id);
  if (++request.generated == 1)
    request.stats.prefill_seconds = seconds_between(request.first_run, Clock::now());
  event.has_token = true;
  event.token = std::move(token);
  event.finished = request.generated == request.params.max_new_tokens;
  event.why = Finish::kLength;
  return event;
}

void Engine::Request::advance(int32_t token) {
  try {
    if (params.constraint != nullptr) state = params.constraint->advance(state, token);
  } catch (const Error&) {
    blocked = true;
  }
}

bool Engine::Request::restrict(SampleLists& lists) {
  bool masked = false;
  try {
    masked = params.constraint != nullptr && params.constraint->restricts(state);
    if (masked) params.constraint->mask(state, lists.mask());
  } catch (const Error&) {
    blocked = true;  // the token that is sampled now is dropped
    std::ranges::fill(lists.mask(), ~uint32_t{0});
  }
  if (generated < params.min_new_tokens) forbid(params.stop, lists.mask());
  return masked;
}

std::vector<Sampled> Engine::sample(const Batch& batch) {
  if (batch.rows.empty()) return {};
  // Masks are made here, while a device still computes the logits.
  SampleLists lists(model_.config().vocab_size);
  for (const auto& [request, scores] : batch.rows) {
    if (scores > 0) {
      // The one token that the mask leaves is chosen, and its log-probability is of all logits.
      lists.add({.temperature = 0, .top_logprobs = request->params.sampling.top_logprobs}, 0);
      std::ranges::fill(lists.mask(), 0);
      const auto token = static_cast<size_t>(request->tokens[static_cast<size_t>(scores)]);
      lists.mask()[token / 32] |= uint32_t{1} << (token % 32);
      continue;
    }
    lists.add(request->params.sampling, static_cast<uint64_t>(request->generated),
              request->terms.list());
    const auto begin = Clock::now();
    if (!request->restrict(lists)) continue;
    ++stats_.masks;
    stats_.mask_seconds += seconds_between(begin, Clock::now());
  }
  return executor_.sample(lists.rows());
}

std::vector<Sampled> Engine::compute(const Batch& batch) {
  try {
    executor_.start(batch.work, [&](size_t i) {
      store_prefix(*batch.chunks[i].request,
                   batch.chunks[i].request->cached + batch.work[i].checkpoint);
    });
    return sample(batch);
  } catch (const NotFinite&) {
    if (check_ != nullptr) throw;  // it already says where
    for (const Batch::Chunk& chunk : batch.chunks) {
      const auto count = static_cast<size_t>(chunk.request->cached + chunk.count);
      const auto place =
          find_non_finite(model_, context(), std::span(chunk.request->tokens).first(count));
      if (place) throw NotFinite(*place);
    }
    throw;
  }
}

void Engine::deliver(const Batch& batch, std::vector<Sampled> tokens, std::vector<Event>& events) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    Request& request = *batch.rows[i].request;
    if (const int64_t scores = batch.rows[i].scores; scores > 0) {
      if (scores <= request.scored) continue;  // computed again after a preemption
      request.scored = scores;
      events.push_back({.sink = request.sink,
                        .id = request.id,
                        .has_token = true,
                        .of_prompt = true,
                        .token = std::move(tokens[i])});
      continue;
    }
    events.push_back(accept(request, std::move(tokens[i])));
    if (!events.back().finished) continue;
    finish(request, events.back().why, events.back());
    const auto at = std::find_if(requests_.begin(), requests_.end(),
                                 [&](const Request& other) { return &other == &request; });
    remove(at, static_cast<size_t>(std::distance(requests_.begin(), at)));
  }
}

bool Engine::step() {
  if (broken_)
    fail(ErrorCode::kUnsupported,
         "an earlier step failed and left the caches half-written: start a new engine");
  std::vector<Event> events;
  end_early(events);
  const bool busy = !requests_.empty();
  if (busy) {
    sort_requests();
    move_long_last();
    look_up_units();
    if (move_loading_last()) {
      run_batch(events);
    } else {  // nothing else to do; not long, because requests may arrive
      requests_.front().lease->wait_for(std::chrono::milliseconds(2));
    }
  }
  if (executor_.prefixes() != nullptr) executor_.prefixes()->finish_saves(requests_.empty());
  for (const Event& event : events) {
    if (event.starts) event.sink->on_start(event.id, event.cached_tokens);
    if (event.has_token && event.of_prompt) {
      event.sink->on_prompt_token(event.id, event.token);
    } else if (event.has_token) {
      event.sink->on_token(event.id, event.token);
    }
    if (event.finished) event.sink->on_stats(event.id, event.stats);
    if (event.finished) event.sink->on_finish(event.id, event.why);
  }
  return busy || !requests_.empty();
}

void Engine::run_batch(std::vector<Event>& events) {
  const Schedule plan = plan_step();
  set_running(plan.num_running, events);
  const Batch batch = make_batch(plan);
  reserve(batch);
  const auto begin = Clock::now();
  broken_ = true;  // until the step has run: one that stops half-way leaves caches half-written
  std::vector<Sampled> tokens = compute(batch);
  broken_ = false;
  if (!batch.rows.empty()) leases_in_use_.clear();  // the device has come to the end of the step
  const std::chrono::duration<double> spent = Clock::now() - begin;
  ++stats_.steps;
  int64_t num_tokens = 0;
  for (const Batch::Chunk& chunk : batch.chunks) num_tokens += chunk.count;
  // Without a token to wait for, a device may still compute.
  if (!batch.rows.empty()) step_time_.observe(num_tokens, spent.count());
  for (const Batch::Chunk& chunk : batch.chunks) chunk.request->cached += chunk.count;
  for (const auto& [request, checkpoint] : std::exchange(stored_, {}))
    save_units(*request, checkpoint);
  const bool prefill = batch.prefill_tokens > 0;
  stats_.prefill_tokens += batch.prefill_tokens;
  if (!prefill) stats_.decode_tokens += static_cast<int64_t>(batch.work.size());
  (prefill ? stats_.prefill_seconds : stats_.decode_seconds) += spent.count();
  deliver(batch, std::move(tokens), events);
}

}  // namespace dsv4
