// The engine's side of the tiers (cache/unit_store.h): requests that wait find units of their
// beginnings, and what stays stored becomes units.

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/engine/engine.h"

namespace dsv4 {
namespace {

// A unit that turns out to be damaged is forgotten, and a shorter one may serve.
constexpr int kMostLookups = 3;

}  // namespace

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

// So that requests behind them run meanwhile. False: every request loads.
bool Engine::move_loading_last() {
  auto at = requests_.begin();
  std::advance(at, num_running_);
  for (auto left = std::distance(at, requests_.end()); left > 0; --left) {
    const auto request = at++;
    if (loading(*request)) requests_.splice(requests_.end(), requests_, request);
  }
  return !loading(requests_.front());
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
  if (units() != nullptr) units()->flush();
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

}  // namespace dsv4
