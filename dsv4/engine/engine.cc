#include "dsv4/engine/engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/engine/fingerprint.h"
#include "dsv4/engine/model_drafter.h"
#include "dsv4/model/batch.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::shared_ptr<Drafter> drafter_of(const EngineOptions& options, Executor& executor) {
  if (drafter_kind(options.speculate) == DrafterKind::kNone) return options.drafter;
  return std::make_shared<ModelDrafter>(executor);
}

}  // namespace

Engine::Engine(const Model& model, const EngineOptions& options)
    : model_(model),
      options_(checked_options(model, options)),
      check_(options.check_numbers ? std::make_unique<CheckNumbers>(model) : nullptr),
      executor_(model, context(), cache_limits(options), options.ranks),
      prefixes_(executor_.cache(), executor_.prefixes(),
                {.checkpoint_interval = options.checkpoint_interval,
                 .longest_load = options.longest_load}),
      speculation_({.on = options.speculate != Speculate::kOff,
                    .draft_tokens = options.draft_tokens,
                    .drafter = drafter_of(options, executor_),
                    .vocab = static_cast<int32_t>(model.config().vocab_size)}) {
  if (options.expert_trace != nullptr) executor_.trace_experts(options.expert_trace.get());
  PrefixCache* const prefixes = executor_.prefixes();
  if (prefixes == nullptr) return;
  const bool tiers = options.tiers.ram_bytes > 0;
  const Digest fingerprint =
      tiers ? cache_fingerprint(options.model_identity, model, context(), executor_.cache_plan())
            : Digest{};
  if (options.block_events) prefixes->publish(options.block_events, fingerprint);
  if (!tiers) return;
  UnitStoreOptions units = options.tiers;
  units.block_events = options.block_events;
  prefixes->open_tiers(units, fingerprint);
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
  check_token_ids(params.prediction, model_.config().vocab_size);
  check_sampling(params.sampling, params.logit_bias, model_.config().vocab_size);
  const auto id = static_cast<RequestId>(next_id_++);
  requests_.push_back({.id = id,
                       .tokens = {prompt.begin(), prompt.end()},
                       .params = params,
                       .sink = &sink,
                       .terms = {params.sampling, params.logit_bias, prompt},
                       .state = params.constraint ? params.constraint->start() : 0,
                       .submitted = Clock::now()});
  return id;
}

void Engine::cancel(RequestId id) {
  cancelled_.push_back(id);
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
    prefixes_.end(*at);
    --num_running_;
  }
  return requests_.erase(at);
}

// Requests that run keep standing before the others.
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

void Engine::look_up_units() {
  const double spent = stats_.prefill_seconds, tokens = static_cast<double>(stats_.prefill_tokens);
  const size_t slots = static_cast<size_t>(options_.max_sequences);
  size_t index = 0;
  for (Request& request : requests_) {
    if (index == slots) return;
    if (index++ >= num_running_) prefixes_.look_up(request, tokens > 0 ? spent / tokens : 0);
  }
}

// Moves waiting requests that are wanted to the end.
void Engine::move_last(const std::function<bool(const Request&)>& wanted) {
  auto at = requests_.begin();
  std::advance(at, num_running_);
  for (auto left = std::distance(at, requests_.end()); left > 0; --left) {
    const auto request = at++;
    if (wanted(*request)) requests_.splice(requests_.end(), requests_, request);
  }
}

// So that requests after them run meanwhile. False: every request loads.
bool Engine::move_loading_last() {
  move_last([&](const Request& request) { return prefixes_.loading(request); });
  return !prefixes_.loading(requests_.front());
}

// One long prompt at a time is computed, and while others wait for it, short ones pass them. A
// prompt of which most is stored is short.
void Engine::move_long_last() {
  const auto end_of_running = std::next(requests_.begin(), static_cast<int64_t>(num_running_));
  const bool any = std::any_of(requests_.begin(), end_of_running, [&](const Request& request) {
    return request.length() - request.cached > options_.long_prompt;
  });
  if (!any) return;
  move_last([&](const Request& request) {
    return request.length() > options_.long_prompt &&
           request.length() - prefixes_.stored_tokens(request) > options_.long_prompt;
  });
}

Schedule Engine::plan_step() {
  // Requests after these cannot run in this step: there are no more slots.
  const size_t slots = static_cast<size_t>(options_.max_sequences);
  std::vector<ScheduledRequest> requests;
  std::vector<Speculation::Proposal> decoding;
  for (Request& request : requests_) {
    if (requests.size() == slots || prefixes_.loading(request)) break;
    const RequestPrefixes::Plan plan = prefixes_.plan(request);
    if (request.decoding())
      decoding.push_back({.request = &request, .most = speculation_.want(request)});
    requests.push_back({.tokens = request.length(),
                        .cached = plan.cached,
                        .answer_left = request.params.max_new_tokens - request.generated,
                        .decoding = request.decoding(),
                        .stop_at = plan.stop_at});
  }
  speculation_.choose(decoding);
  auto proposal = decoding.begin();
  for (ScheduledRequest& request : requests)
    if (request.decoding) request.drafts = (proposal++)->most;
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
                   .max_prompt_tokens = max_prompt_tokens(requests),
                   .max_sequences = options_.max_sequences,
                   .long_prompt = options_.long_prompt,
                   .chunk_step = checkpoint_step(tables.groups())});
}

void Engine::set_running(size_t num_running, std::vector<Event>& events) {
  auto at = requests_.begin();
  std::advance(at, std::min(num_running, num_running_));
  for (; num_running_ < num_running; ++num_running_, ++at) {
    begin(*at, events);
    std::for_each(std::next(at), requests_.end(), [&](Request& other) {
      if (other.id < at->id) ++other.overtaken;
    });
  }
  for (; num_running_ > num_running; --num_running_, ++at) {
    prefixes_.end(*at);
    ++at->stats.preemptions;
    ++stats_.preemptions;
  }
}

void Engine::begin(Request& request, std::vector<Event>& events) {
  const PrefixCache::Attached attached = prefixes_.begin(request);
  stats_.cached_tokens += attached.tokens;
  stats_.ram_tokens += attached.ram;
  stats_.disk_tokens += attached.disk;
  if (std::exchange(request.started, true)) return;
  events.push_back(
      {.sink = request.sink, .id = request.id, .starts = true, .cached_tokens = attached.tokens});
  request.first_run = Clock::now();
  request.stats.queue_seconds = seconds_between(request.submitted, request.first_run);
  request.stats.prompt_tokens = request.length();
  request.stats.cached_tokens = attached.tokens;
  request.stats.ram_tokens = attached.ram;
  request.stats.disk_tokens = attached.disk;
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

std::vector<Sampled> Engine::compute(const Batch& batch) {
  try {
    executor_.start(batch.work, [&](size_t i) {
      Request& request = *batch.chunks[i].request;
      prefixes_.store(request, request.cached + batch.work[i].checkpoint);
    });
    return sample(batch);
  } catch (const NotFinite&) {
    if (check_ != nullptr) throw;  // it already says where
    for (const Batch::Chunk& chunk : batch.chunks) {
      const auto count = static_cast<size_t>(
          std::min(chunk.request->cached + chunk.count, chunk.request->length()));
      const auto place =
          find_non_finite(model_, context(), std::span(chunk.request->tokens).first(count));
      if (place) throw NotFinite(*place);
    }
    throw;
  }
}

// A sink that cancels a request gets no token of it that a plain step would have computed later.
void Engine::send(const std::vector<Event>& events) {
  cancelled_.clear();
  for (const Event& event : events) {
    const bool cancelled =
        event.later && std::ranges::find(cancelled_, event.id) != cancelled_.end();
    if (event.starts) event.sink->on_start(event.id, event.cached_tokens);
    if (event.has_drafts) event.sink->on_drafts(event.id, event.drafts);
    if (event.has_token && event.of_prompt) {
      event.sink->on_prompt_token(event.id, event.token);
    } else if (event.has_token && !cancelled) {
      event.sink->on_token(event.id, event.token);
    }
    if (!event.finished) continue;
    event.sink->on_stats(event.id, event.stats);
    event.sink->on_finish(event.id, cancelled ? Finish::kCancelled : event.why);
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
      prefixes_.wait(requests_.front(), std::chrono::milliseconds(2));
    }
  }
  prefixes_.finish_saves(/*wait=*/requests_.empty());
  send(events);
  return busy || !requests_.empty();
}

void Engine::run_batch(std::vector<Event>& events) {
  const Schedule plan = plan_step();
  set_running(plan.num_running, events);
  const auto begin = Clock::now();  // drafts are part of what a step takes
  const Batch batch = make_batch(plan);
  broken_ = true;  // until the step has run: one that stops half-way leaves caches half-written
  std::vector<Sampled> tokens = compute(batch);
  broken_ = false;
  const std::chrono::duration<double> spent = Clock::now() - begin;
  ++stats_.steps;
  int64_t num_tokens = 0;
  for (const Batch::Chunk& chunk : batch.chunks) num_tokens += chunk.count;
  const auto scored = static_cast<int64_t>(
      std::ranges::count_if(batch.rows, [](const Batch::Row& row) { return row.scores > 0; }));
  // Without a token to wait for, a device may still compute.
  if (scored > 0) {
    step_time_.observe_rows(num_tokens, scored, spent.count());
  } else if (!batch.rows.empty()) {
    step_time_.observe(num_tokens, spent.count());
    if (batch.prefill_tokens > 0) prompt_time_.observe(num_tokens, spent.count());
  }
  for (const Batch::Chunk& chunk : batch.chunks)
    if (!chunk.round) chunk.request->cached += chunk.count;
  prefixes_.after_step(/*waited=*/!batch.rows.empty());
  const bool prefill = batch.prefill_tokens > 0;
  if (!prefill) speculation_.observe(num_tokens, spent.count());
  stats_.prefill_tokens += batch.prefill_tokens;
  (prefill ? stats_.prefill_seconds : stats_.decode_seconds) += spent.count();
  const int64_t drawn = deliver(batch, std::move(tokens), events);
  if (!prefill) stats_.decode_tokens += drawn;
}

void Engine::drop_prefixes(PrefixTier last) {
  for (Request& request : requests_) prefixes_.forget_units(request);
  prefixes_.drop(last);
  if (last == PrefixTier::kDisk && options_.block_events)
    options_.block_events({.kind = BlockEvent::Kind::kCleared});
}

void Engine::flush_prefixes() {
  prefixes_.flush();
}

int64_t Engine::save_prefix(const std::string& path, std::span<const int32_t> ids,
                            std::string_view salt) {
  return prefixes_.save_text(path, ids, salt);
}

void Engine::load_prefix(const std::string& path) {
  prefixes_.load_text(path);
}

void Engine::check_invariants() const {
  const PageTables& tables = executor_.cache();
  tables.check_invariants();
  size_t index = 0;
  for (const Request& request : requests_) {
    const bool runs = index++ < num_running_;
    DSV4_CHECK(request.runs() == runs && (runs || request.cached == 0),
               "request {} is number {} of {} that run, with {} tokens in sequence {:#x}",
               static_cast<uint64_t>(request.id), index, num_running_, request.cached,
               static_cast<uint64_t>(request.seq));
    if (!runs) continue;
    DSV4_CHECK(tables.length(request.seq) == request.cached,
               "request {} has computed {} tokens, and its pages hold {}",
               static_cast<uint64_t>(request.id), request.cached, tables.length(request.seq));
    for (size_t g = 0; g < tables.groups().size(); ++g) {
      const auto held = std::ssize(tables.pages(request.seq, static_cast<int>(g)));
      DSV4_CHECK(held == table_pages(tables.groups()[g], request.cached),
                 "request {} of {} tokens has a table of {} pages in group {}",
                 static_cast<uint64_t>(request.id), request.cached, held, g);
    }
  }
  DSV4_CHECK(num_running_ <= requests_.size(), "{} of {} requests run", num_running_,
             requests_.size());
  if (executor_.prefixes() != nullptr) executor_.prefixes()->check_invariants();
}

}  // namespace dsv4
