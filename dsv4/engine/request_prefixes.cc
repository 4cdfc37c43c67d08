#include "dsv4/engine/request_prefixes.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/request_state.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

// A unit that turns out to be damaged is forgotten, and a shorter one may serve.
constexpr int kMostLookups = 3;
constexpr int64_t kLeastJunction = 256;  // tokens; of fewer, a checkpoint costs more than it spares

// The tokens of which a stored prefix may be used: all but the last at most.
std::span<const int32_t> reusable(const RequestState& request) {
  if (request.scoring()) return {};
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

}  // namespace

RequestPrefixes::RequestPrefixes(PageTables& tables, PrefixCache* prefixes, const Options& options)
    : tables_(tables), prefixes_(prefixes), options_(options) {
}

// ---- Of a request that waits

bool RequestPrefixes::loading(const RequestState& request) const {
  const auto& lease = request.prefix.lease;
  return lease != nullptr && lease->state() == UnitStore::Lease::State::kLoading;
}

void RequestPrefixes::wait(const RequestState& request, std::chrono::milliseconds time) const {
  if (request.prefix.lease != nullptr) request.prefix.lease->wait_for(time);
}

int64_t RequestPrefixes::stored_tokens(const RequestState& request) const {
  if (prefixes_ == nullptr) return 0;
  const auto& lease = request.prefix.lease;
  return std::max(prefixes_->match(request.params.salt, reusable(request)).tokens,
                  lease == nullptr ? 0 : lease->tokens());
}

const PrefixChain& RequestPrefixes::chain_of(RequestState& request) const {
  std::optional<PrefixChain>& chain = request.prefix.chain;
  if (!chain) chain.emplace(units()->fingerprint(), request.params.salt, units()->layout().step);
  chain->extend(request.tokens);
  return *chain;
}

void RequestPrefixes::find_units(RequestState& request, double seconds_per_token) {
  const std::span<const int32_t> ids = reusable(request);
  const int64_t have = prefixes_->match(request.params.salt, ids).tokens;
  request.prefix.lease = units()->find(chain_of(request), ids, have, seconds_per_token);
  request.prefix.lease_begin = Clock::now();
}

void RequestPrefixes::look_up(RequestState& request, double seconds_per_token) {
  using LeaseState = UnitStore::Lease::State;
  if (units() == nullptr || reusable(request).empty()) return;
  State& prefix = request.prefix;
  while (prefix.lease != nullptr || prefix.lookups < kMostLookups) {
    if (prefix.lease == nullptr) {
      find_units(request, seconds_per_token);
      if (prefix.lease == nullptr) return;  // a later step may find what others store until then
      ++prefix.lookups;
      continue;
    }
    const bool late = Clock::now() - prefix.lease_begin > options_.longest_load;
    const LeaseState state = prefix.lease->state();
    if (state == LeaseState::kReady || (state == LeaseState::kLoading && !late)) return;
    prefix.lease.reset();
    if (late) prefix.lookups = kMostLookups;
  }
}

void RequestPrefixes::forget_units(RequestState& request) const {
  request.prefix.lease.reset();
}

// ---- Where checkpoints are

// Besides the ends of prompts, forks and junctions: every so many tokens after the checkpoint
// before. A turn that is shorter has one at its end, and no step is cut for another.
bool RequestPrefixes::wants_checkpoint(const RequestState& request, int64_t tokens,
                                       int64_t before) const {
  const int64_t step = prefixes_->step();
  const int64_t interval = ceil_div(options_.checkpoint_interval, step) * step;
  const auto is_fork = [&](int64_t fork) { return fork / step * step == tokens; };
  return tokens == (request.length() - 1) / step * step || tokens - before >= interval ||
         tokens == request.prefix.junction || std::ranges::any_of(request.params.forks, is_fork);
}

// A checkpoint is made when a chunk ends less than a step after it, so none is needed near the end.
int64_t RequestPrefixes::next_stop(const RequestState& request, int64_t cached,
                                   int64_t before) const {
  if (request.decoding()) return 0;
  const int64_t step = prefixes_->step(), end = request.length() - step;
  for (int64_t tokens = (cached / step + 1) * step; tokens <= end; tokens += step) {
    if (wants_checkpoint(request, tokens, before)) return tokens;
  }
  return 0;
}

RequestPrefixes::Plan RequestPrefixes::plan(RequestState& request) {
  if (prefixes_ == nullptr) return {.cached = request.cached};
  State& prefix = request.prefix;
  if (request.runs()) {
    return {.cached = request.cached,
            .stop_at = next_stop(request, request.cached, prefix.last_checkpoint)};
  }
  const PrefixCache::Match match = prefixes_->match(request.params.salt, reusable(request));
  const int64_t cached =
      std::max(match.tokens, prefix.lease == nullptr ? 0 : prefix.lease->tokens());
  prefix.junction = match.common - cached >= kLeastJunction ? match.common : 0;
  return {.cached = cached, .stop_at = next_stop(request, cached, cached)};
}

int64_t RequestPrefixes::checkpoint_after(const RequestState& request, int64_t count) const {
  if (prefixes_ == nullptr) return 0;
  const int64_t end = request.cached + count, tokens = end / prefixes_->step() * prefixes_->step();
  if (tokens <= request.cached) return 0;
  const bool wanted =
      request.decoding() || wants_checkpoint(request, tokens, request.prefix.last_checkpoint);
  return wanted ? tokens - request.cached : 0;
}

// ---- Of a request that runs

PrefixCache::Attached RequestPrefixes::begin(RequestState& request) {
  State& prefix = request.prefix;
  request.seq = tables_.open();
  PrefixCache::Attached attached;
  if (prefixes_ != nullptr) {
    attached =
        prefixes_->attach(request.seq, request.params.salt, reusable(request), prefix.lease.get());
    if (attached.ram + attached.disk > 0) leases_in_use_.push_back(std::move(prefix.lease));
    prefix.lease.reset();
  }
  request.cached = prefix.last_checkpoint = attached.tokens;
  return attached;
}

void RequestPrefixes::reserve(const RequestState& request, int64_t count) {
  while (!tables_.reserve(request.seq, count)) {
    if (prefixes_ == nullptr || !prefixes_->evict())
      fail(ErrorCode::kResource, "no cache room for {} tokens after {}", count, request.cached);
  }
}

void RequestPrefixes::store(RequestState& request, int64_t tokens) {
  State& prefix = request.prefix;
  const CheckpointId id =
      prefixes_->store(request.seq, request.params.salt,
                       std::span(request.tokens).first(static_cast<size_t>(tokens)));
  prefix.last_checkpoint = tokens;
  if (request.generated == 0) {
    stored_.emplace_back(&request, id);
  } else if (id != CheckpointId::kNone) {
    prefixes_->erase(prefix.answer_checkpoint);
    prefix.answer_checkpoint = id;
  }
}

void RequestPrefixes::after_step(bool waited) {
  if (waited) leases_in_use_.clear();
  for (const auto& [request, checkpoint] : std::exchange(stored_, {})) save(*request, checkpoint);
}

void RequestPrefixes::end(RequestState& request) {
  save(request, std::exchange(request.prefix.answer_checkpoint, CheckpointId::kNone));
  tables_.close(std::exchange(request.seq, SeqId{}));
  request.cached = 0;
  request.prefix.lookups = 0;
}

// ---- Units

void RequestPrefixes::save(RequestState& request, CheckpointId checkpoint) {
  if (units() == nullptr || checkpoint == CheckpointId::kNone) return;
  prefixes_->save(checkpoint, chain_of(request), request.tokens);
}

void RequestPrefixes::finish_saves(bool wait) {
  if (prefixes_ != nullptr) prefixes_->finish_saves(wait);
}

void RequestPrefixes::drop(PrefixTier last) {
  while (prefixes_ != nullptr && prefixes_->evict()) {
  }
  if (units() == nullptr || last == PrefixTier::kCache) return;
  last == PrefixTier::kRam ? units()->drop_ram() : units()->drop_all();
}

void RequestPrefixes::flush() {
  if (units() == nullptr) return;
  prefixes_->finish_saves(/*wait=*/true);
  units()->flush();
}

int64_t RequestPrefixes::save_text(const std::string& path, std::span<const int32_t> ids,
                                   std::string_view salt) {
  DSV4_CHECK(units() != nullptr, "{} cannot be written: the engine has no tiers", path);
  PrefixChain chain(units()->fingerprint(), salt, units()->layout().step);
  chain.extend(ids);
  const int64_t tokens = units()->match(chain, ids);
  if (tokens > 0) units()->export_text(path, chain, ids.first(static_cast<size_t>(tokens)));
  return tokens;
}

void RequestPrefixes::load_text(const std::string& path) {
  DSV4_CHECK(units() != nullptr, "{} cannot be read: the engine has no tiers", path);
  units()->import_text(path);
}

}  // namespace dsv4
