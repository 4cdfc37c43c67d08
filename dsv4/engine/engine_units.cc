// The engine's side of stored prefixes: where checkpoints are made, and the tiers
// (cache/unit_store.h): requests that wait find units of their prefixes, and what stays stored
// becomes units. Also the check of what all of this must keep true.

#include <algorithm>
#include <iterator>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/engine.h"

namespace dsv4 {
namespace {

// A unit that turns out to be damaged is forgotten, and a shorter one may serve.
constexpr int kMostLookups = 3;

}  // namespace

std::span<const int32_t> Engine::reusable(const Request& request) const {
  if (request.scoring()) return {};
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

// Besides the ends of prompts, forks and junctions: every so many tokens after the checkpoint
// before. A turn that is shorter has one at its end, and no step is cut for another.
bool Engine::wants_checkpoint(const Request& request, int64_t tokens, int64_t before) const {
  const int64_t step = executor_.prefixes()->step();
  const int64_t interval = ceil_div(options_.checkpoint_interval, step) * step;
  const auto is_fork = [&](int64_t fork) { return fork / step * step == tokens; };
  return tokens == (request.length() - 1) / step * step || tokens - before >= interval ||
         tokens == request.junction || std::ranges::any_of(request.params.forks, is_fork);
}

// A checkpoint is made when a chunk ends less than a step after it, so none is needed near the end.
int64_t Engine::next_stop(const Request& request, int64_t cached, int64_t before) const {
  const PrefixCache* prefixes = executor_.prefixes();
  if (prefixes == nullptr || request.decoding()) return 0;
  const int64_t step = prefixes->step(), end = request.length() - step;
  for (int64_t tokens = (cached / step + 1) * step; tokens <= end; tokens += step) {
    if (wants_checkpoint(request, tokens, before)) return tokens;
  }
  return 0;
}

int64_t Engine::checkpoint_after(const Request& request, int64_t count) const {
  const PrefixCache* prefixes = executor_.prefixes();
  if (prefixes == nullptr) return 0;
  const int64_t end = request.cached + count, tokens = end / prefixes->step() * prefixes->step();
  if (tokens <= request.cached) return 0;
  const bool wanted =
      request.decoding() || wants_checkpoint(request, tokens, request.last_checkpoint);
  return wanted ? tokens - request.cached : 0;
}

void Engine::store_prefix(Request& request, int64_t tokens) {
  PrefixCache* prefixes = executor_.prefixes();
  const CheckpointId id =
      prefixes->store(request.seq, request.params.salt,
                      std::span(request.tokens).first(static_cast<size_t>(tokens)));
  request.last_checkpoint = tokens;
  if (request.generated == 0) {
    stored_.emplace_back(&request, id);
  } else if (id != CheckpointId::kNone) {
    prefixes->erase(request.answer_checkpoint);
    request.answer_checkpoint = id;
  }
}

void Engine::reserve(const Batch& batch) {
  PrefixCache* prefixes = executor_.prefixes();
  for (const Batch::Chunk& chunk : batch.chunks) {
    while (!executor_.cache().reserve(chunk.request->seq, chunk.count)) {
      if (prefixes == nullptr || !prefixes->evict()) {
        fail(ErrorCode::kResource, "no cache room for {} tokens after {}", chunk.count,
             chunk.request->cached);
      }
    }
  }
}

bool Engine::loading(const Request& request) const {
  return request.lease != nullptr && request.lease->state() == UnitStore::Lease::State::kLoading;
}

void Engine::look_up_units(Request& request) {
  using State = UnitStore::Lease::State;
  const std::span<const int32_t> ids = reusable(request);
  if (ids.empty()) return;
  while (request.lease != nullptr || request.lookups < kMostLookups) {
    if (request.lease == nullptr) {
      request.chain.extend(request.tokens);
      const double spent = stats_.prefill_seconds,
                   tokens = static_cast<double>(stats_.prefill_tokens);
      const int64_t have = executor_.prefixes()->match(request.params.salt, ids).tokens;
      request.lease = units()->find(request.chain, ids, have, tokens > 0 ? spent / tokens : 0);
      request.lease_begin = std::chrono::steady_clock::now();
      if (request.lease == nullptr) return;  // a later step may find what others store until then
      ++request.lookups;
      continue;
    }
    const bool late =
        std::chrono::steady_clock::now() - request.lease_begin > options_.longest_load;
    const State state = request.lease->state();
    if (state == State::kReady || (state == State::kLoading && !late)) return;
    request.lease.reset();
    if (late) request.lookups = kMostLookups;
  }
}

void Engine::look_up_units() {
  if (units() == nullptr) return;
  const size_t slots = static_cast<size_t>(options_.max_sequences);
  size_t index = 0;
  for (Request& request : requests_) {
    if (index == slots) return;
    if (index++ < num_running_) continue;
    look_up_units(request);
  }
}

// Of the requests that wait.
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
  move_last([&](const Request& request) { return loading(request); });
  return !loading(requests_.front());
}

// One long prompt at a time is computed, and while others wait for it, short ones pass them. A
// prompt of which most is stored is short.
void Engine::move_long_last() {
  const auto end_of_running = std::next(requests_.begin(), static_cast<int64_t>(num_running_));
  const bool any = std::any_of(requests_.begin(), end_of_running, [&](const Request& request) {
    return request.length() - request.cached > options_.long_prompt;
  });
  if (!any) return;
  const PrefixCache* prefixes = executor_.prefixes();
  move_last([&](const Request& request) {
    if (request.length() <= options_.long_prompt) return false;
    int64_t stored = request.lease == nullptr ? 0 : request.lease->tokens();
    if (prefixes != nullptr)
      stored = std::max(stored, prefixes->match(request.params.salt, reusable(request)).tokens);
    return request.length() - stored > options_.long_prompt;
  });
}

void Engine::save_units(Request& request, CheckpointId checkpoint) {
  if (units() == nullptr || checkpoint == CheckpointId::kNone) return;
  request.chain.extend(request.tokens);
  executor_.prefixes()->save(checkpoint, request.chain, request.tokens);
}

void Engine::drop_prefixes(PrefixTier last) {
  for (Request& request : requests_) request.lease.reset();
  while (executor_.prefixes() != nullptr && executor_.prefixes()->evict()) {
  }
  if (units() == nullptr || last == PrefixTier::kCache) return;
  last == PrefixTier::kRam ? units()->drop_ram() : units()->drop_all();
}

void Engine::flush_prefixes() {
  if (units() == nullptr) return;
  executor_.prefixes()->finish_saves(/*wait=*/true);
  units()->flush();
}

int64_t Engine::save_prefix(const std::string& path, std::span<const int32_t> ids,
                            std::string_view salt) {
  DSV4_CHECK(units() != nullptr, "{} cannot be written: the engine has no tiers", path);
  PrefixChain chain(units()->fingerprint(), salt, units()->layout().step);
  chain.extend(ids);
  const int64_t tokens = units()->match(chain, ids);
  if (tokens > 0) units()->export_text(path, chain, ids.first(static_cast<size_t>(tokens)));
  return tokens;
}

void Engine::load_prefix(const std::string& path) {
  DSV4_CHECK(units() != nullptr, "{} cannot be read: the engine has no tiers", path);
  units()->import_text(path);
}

void Engine::check_invariants() const {
  const PageTables& tables = executor_.cache();
  tables.check_invariants();
  size_t index = 0;
  for (const Request& request : requests_) {
    if (index++ == num_running_) break;
    DSV4_CHECK(tables.length(request.seq) == request.cached,
               "request {} has computed {} tokens, and its pages hold {}",
               static_cast<uint64_t>(request.id), request.cached, tables.length(request.seq));
  }
  DSV4_CHECK(num_running_ <= requests_.size(), "{} of {} requests run", num_running_,
             requests_.size());
  if (executor_.prefixes() != nullptr) executor_.prefixes()->check_invariants();
}

}  // namespace dsv4
