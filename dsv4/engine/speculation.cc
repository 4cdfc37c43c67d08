#include "dsv4/engine/speculation.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/request_state.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

size_t index_of(DraftSource source) {
  return static_cast<size_t>(source);
}

// The only token that a mask allows.
std::optional<int32_t> only_token(std::span<const uint32_t> mask) {
  std::optional<int32_t> only;
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == 0) continue;
    if (only || !std::has_single_bit(mask[word])) return {};
    only = static_cast<int32_t>(32 * word) + std::countr_zero(mask[word]);
  }
  return only;
}

bool allows(std::span<const uint32_t> mask, int32_t token) {
  return mask.empty() || (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

}  // namespace

const char* name(DraftSource source) {
  switch (source) {
    case DraftSource::kGrammar:
      return "grammar";
    case DraftSource::kPrediction:
      return "prediction";
    case DraftSource::kLookup:
      return "lookup";
    case DraftSource::kDrafter:
      return "drafter";
  }
  return "unknown";
}

int64_t DraftCounts::all_drafted() const {
  return std::accumulate(drafted.begin(), drafted.end(), int64_t{0});
}

int64_t DraftCounts::all_accepted() const {
  return std::accumulate(accepted.begin(), accepted.end(), int64_t{0});
}

DraftCounts& DraftCounts::operator+=(const DraftCounts& other) {
  for (size_t s = 0; s < kNumDraftSources; ++s) {
    drafted[s] += other.drafted[s];
    accepted[s] += other.accepted[s];
  }
  return *this;
}

Speculation::Speculation(Options options)
    : options_(std::move(options)),
      words_(static_cast<size_t>(ceil_div(options_.vocab, 32))),
      policy_(options_.drafter != nullptr && options_.drafter->one_pass()) {
}

// The answer gets one token more than drafts are accepted.
int64_t Speculation::most_drafts(const RequestState& request) const {
  const int64_t most = options_.draft_tokens > 0 ? options_.draft_tokens : kMaxDrafts;
  return std::min(most, request.params.max_new_tokens - request.generated - 1);
}

// Appends a draft, unless it could only be rejected or would end the answer.
bool Speculation::add(RequestState& request, const Round::Draft& draft) const {
  Round& round = request.round;
  const int32_t token = draft.token;
  if (std::ranges::find(request.params.stop, token) != request.params.stop.end()) return false;
  if (request.params.constraint != nullptr) {
    if (!request.make_mask(round.rows.size() - 1, words_)) return false;
    if (!allows(round.rows.back().mask, token) || !request.add_row(token)) return false;
  }
  round.drafts.push_back(draft);
  return true;
}

int64_t Speculation::want(RequestState& request) {
  const auto begin = Clock::now();
  request.round = {};
  const int64_t most = most_drafts(request);
  if (!on() || !request.params.speculate || most < 1) return 0;
  DraftState& state = request.draft_state;
  if (state.rates.empty())
    for (const HoldRate& all : rates_) state.rates.emplace_back(all.rate());
  if (state.lookup == nullptr) state.lookup = std::make_unique<Lookup>(request.params.prediction);
  state.lookup->begin(request.tokens,
                      request.tokens.size() - static_cast<size_t>(request.generated));
  if (request.params.constraint != nullptr) request.begin_rows();
  const bool constrained = !request.round.rows.empty();
  while (std::ssize(request.round.drafts) < most) {
    std::optional<int32_t> forced;
    if (constrained) {
      if (!request.make_mask(request.round.rows.size() - 1, words_)) break;
      forced = only_token(request.round.rows.back().mask);
    }
    const std::optional<Lookup::Guess> guess = state.lookup->next();
    if (!forced && !guess) break;
    const DraftSource source = forced             ? DraftSource::kGrammar
                               : guess->predicted ? DraftSource::kPrediction
                                                  : DraftSource::kLookup;
    const int32_t draft = forced ? *forced : guess->token;
    if (!add(request, {draft, source})) break;
    state.lookup->take(draft);
  }
  stats_.draft_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  return options_.drafter == nullptr ? std::ssize(request.round.drafts) : most;
}

int64_t Speculation::most_guesses(int64_t most) const {
  return options_.drafter == nullptr ? 0 : std::min(most, options_.drafter->most());
}

DraftOffer Speculation::offer_of(const Proposal& proposal) const {
  if (proposal.most == 0) return {};
  const auto rate = [&](DraftSource source) {
    return proposal.request->draft_state.rates[index_of(source)].rate();
  };
  DraftOffer offer;
  for (const Round::Draft& draft : proposal.request->round.drafts)
    offer.own.push_back(rate(draft.source));
  offer.drafter.assign(static_cast<size_t>(most_guesses(proposal.most)),
                       rate(DraftSource::kDrafter));
  return offer;
}

void Speculation::choose(std::span<Proposal> decoding) {
  std::vector<DraftOffer> offers;
  for (const Proposal& one : decoding) offers.push_back(offer_of(one));
  DraftChoice choice{.most = options_.draft_tokens, .drafter = options_.drafter != nullptr};
  if (options_.draft_tokens == 0) choice = policy_.choose(offers);
  stats_.chosen = choice.most;
  for (size_t i = 0; i < decoding.size(); ++i) {
    Proposal& one = decoding[i];
    Round& round = one.request->round;
    if (choice.drafter && offers[i].drafter_gives_more(choice.most)) {
      if (!round.drafts.empty()) round.set_aside = round.drafts[0];
      round.drafts.clear();
      if (!round.rows.empty()) round.rows.resize(1);
      one.most = std::min(most_guesses(one.most), choice.most);
    } else {
      one.most = std::min(choice.most, std::ssize(round.drafts));
    }
  }
}

void Speculation::limit(RequestState& request, int64_t most) {
  Round& round = request.round;
  if (std::ssize(round.drafts) <= most) return;
  round.left_out = round.drafts[static_cast<size_t>(most)];
  round.drafts.resize(static_cast<size_t>(most));
  if (!round.rows.empty()) round.rows.resize(static_cast<size_t>(most) + 1);
}

void Speculation::propose(std::span<const Proposal> proposals) {
  drafter_seconds_ = 0;
  if (options_.drafter == nullptr) return;
  const auto begin = Clock::now();
  std::vector<DraftWant> wants;
  std::vector<RequestState*> requests;
  for (const Proposal& one : proposals) {
    if (!one.request->round.drafts.empty() || one.most < 1) continue;
    wants.push_back({.request = one.request, .tokens = one.request->tokens, .most = one.most});
    requests.push_back(one.request);
  }
  if (wants.empty()) return;
  const auto drafter_begin = Clock::now();
  options_.drafter->propose(wants);
  drafter_seconds_ = std::chrono::duration<double>(Clock::now() - drafter_begin).count();
  int64_t guesses = 0, rows = 0;
  for (const DraftWant& want : wants) guesses = std::max(guesses, want.most), rows += want.most;
  policy_.observe_drafter({.guesses = guesses, .rows = rows, .requests = std::ssize(wants)},
                          drafter_seconds_);
  for (size_t i = 0; i < wants.size(); ++i) {
    DSV4_CHECK(std::ssize(wants[i].drafts) <= wants[i].most, "{} drafts, {} were wanted",
               wants[i].drafts.size(), wants[i].most);
    stats_.failed += wants[i].failed ? 1 : 0;
    const std::vector<float>& chances = wants[i].chances;
    for (size_t k = 0; k < wants[i].drafts.size(); ++k) {
      const float said = k < chances.size() && std::isfinite(chances[k]) ? chances[k] : -1;
      if (!add(*requests[i], {wants[i].drafts[k], DraftSource::kDrafter, said})) break;
    }
  }
  leave_out(proposals);
  stats_.draft_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

// A drafter that says how likely its drafts are to hold is believed as far as they did so far; of
// another, all drafts of a request are alike.
double Speculation::chance(const RequestState& request, const Round::Draft& draft) const {
  if (draft.said >= 0) return said_.of(draft.said);
  return request.draft_state.rates[index_of(draft.source)].rate();
}

// The drafts are there, so what they took does not count any more.
void Speculation::leave_out(std::span<const Proposal> proposals) {
  if (options_.draft_tokens > 0) return;
  std::vector<DraftOffer> offers;
  bool says = false;
  for (const Proposal& one : proposals) {
    DraftOffer& offer = offers.emplace_back();
    for (const Round::Draft& draft : one.request->round.drafts) {
      offer.own.push_back(chance(*one.request, draft));
      says |= draft.said >= 0;
    }
  }
  if (!says) return;
  const int64_t most = policy_.most_of(offers);
  for (const Proposal& one : proposals) {
    const std::vector<Round::Draft>& drafts = one.request->round.drafts;
    if (!drafts.empty() && drafts[0].said >= 0) limit(*one.request, most);
  }
}

void Speculation::judge(RequestState& request, const Round::Draft& draft, bool held) {
  const size_t source = index_of(draft.source);
  rates_[source].observe(held);
  request.draft_state.rates[source].observe(held);
  if (draft.said >= 0) said_.observe(draft.said, held);
}

void Speculation::observe(int64_t tokens, double seconds) {
  policy_.observe(tokens, std::max(seconds - drafter_seconds_, 0.0));
}

DraftCounts Speculation::count(RequestState& request, const Given& given) {
  DraftCounts counts;
  const Round& round = request.round;
  const int64_t accepted = given.tokens - 1;
  for (int64_t i = 0; i < std::ssize(round.drafts); ++i) {
    const Round::Draft& draft = round.drafts[static_cast<size_t>(i)];
    const DraftSource source = draft.source;
    ++counts.drafted[index_of(source)];
    ++stats_.drafted_at[static_cast<size_t>(i)];
    if (i <= accepted) judge(request, draft, i < accepted);
    if (i >= accepted) continue;
    ++counts.accepted[index_of(source)];
    ++stats_.accepted_at[static_cast<size_t>(i)];
  }
  if (round.left_out && accepted == std::ssize(round.drafts))
    judge(request, *round.left_out, round.left_out->token == given.last);
  if (round.set_aside) judge(request, *round.set_aside, round.set_aside->token == given.first);
  const bool guessed = !round.drafts.empty() && round.drafts[0].source == DraftSource::kDrafter;
  if (std::vector<HoldRate>& rates = request.draft_state.rates; !guessed && !rates.empty())
    rates[index_of(DraftSource::kDrafter)].forget();
  if (round.drafts.empty()) return counts;
  stats_.counts += counts;
  ++stats_.rounds;
  stats_.tokens += given.tokens;
  ++stats_.round_tokens[static_cast<size_t>(accepted)];
  return counts;
}

}  // namespace dsv4
