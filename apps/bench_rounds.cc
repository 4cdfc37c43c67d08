#include "apps/bench_rounds.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>

#include "apps/bench_model.h"
#include "apps/speculate_options.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/engine/speculation.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

// "0.9" or "0.79,0.61"
std::vector<double> parse_chances(const std::string& text) {
  std::vector<double> chances;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    double chance = -1;
    const auto [stop, error] = std::from_chars(at, end, chance);
    const bool good = error == std::errc() && chance >= 0 && chance <= 1;
    if (!good || (stop != end && *stop != ','))
      fail(ErrorCode::kBadInput, "--accept {}: want numbers from 0 to 1 separated by commas",
           quotable(text));
    chances.push_back(chance);
    if (stop == end) return chances;
    at = stop + 1;
  }
}

}  // namespace

void add_round_options(CLI::App& command, RoundOptions& options) {
  command.add_option("--draft-tokens", options.draft_tokens,
                     "measure rounds of so many drafts, a list; 0: plain steps");
  command.add_option("--accept", options.accept,
                     "--draft-tokens: chance that draft 1, 2, .. holds if those before it do, a "
                     "list whose last number stands for all further drafts");
  command
      .add_option("--speculate", options.source,
                  "--draft-tokens: where drafts come from; those of lookup cost nothing")
      ->check(CLI::IsMember({"lookup", "mtp", "dspark"}))
      ->option_text("lookup|mtp|dspark (lookup)");
  add_draft_head_option(command, options.draft_head);
}

double RoundKind::expected_tokens() const {
  double sum = 1, all_held = 1;
  for (const double chance : chances) sum += all_held *= chance;
  return sum;
}

std::vector<RoundKind> round_kinds(const RoundOptions& options, bool on_gpu) {
  if (options.draft_tokens.empty()) {
    if (!options.accept.empty() || options.source != "lookup")
      fail(ErrorCode::kBadInput, "--accept and --speculate require --draft-tokens");
    return {{}};
  }
  const DrafterKind drafter = options.source == "mtp"      ? DrafterKind::kMtp
                              : options.source == "dspark" ? DrafterKind::kDspark
                                                           : DrafterKind::kNone;
  std::vector<RoundKind> kinds;
  for (const int64_t drafts :
       parse_numbers("--draft-tokens", options.draft_tokens, kMaxDrafts, /*low=*/0)) {
    RoundKind& kind = kinds.emplace_back();
    if (drafts == 0) continue;
    if (options.accept.empty())
      fail(ErrorCode::kBadInput,
           "--draft-tokens {}: add --accept, the chances that drafts hold, such as 0.8,0.6",
           options.draft_tokens);
    kind = {.drafts = drafts,
            .chances = parse_chances(options.accept),
            .drafter = drafter,
            .draft_head = copies_head(options.draft_head, drafter, on_gpu)};
    kind.chances.resize(static_cast<size_t>(drafts), kind.chances.back());
  }
  return kinds;
}

Rounds::Rounds(Executor& executor, const RoundKind& kind, std::vector<SeqId> sequences,
               std::vector<int32_t> tokens, uint64_t seed)
    : executor_(executor),
      kind_(kind),
      sequences_(std::move(sequences)),
      tokens_(std::move(tokens)),
      rng_(seed) {
}

// Returns the drafts of each sequence.
std::vector<std::vector<int32_t>> Rounds::drafts() {
  if (kind_.drafter != DrafterKind::kNone) {
    std::vector<Executor::DraftRow> rows;
    SampleLists greedy(executor_.vocab());
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (!executor_.cache().reserve(sequences_[i], 1 + kind_.drafts))
        fail(ErrorCode::kResource, "the cache has no room for {} drafts", kind_.drafts);
      rows.push_back({sequences_[i], tokens_[i], kind_.drafts});
      greedy.add({.temperature = 0}, 0);
    }
    std::vector<std::vector<int32_t>> ids;
    for (Executor::Guesses& guesses : executor_.draft(rows, greedy.rows()))
      ids.push_back(std::move(guesses.ids));
    return ids;
  }
  std::vector<std::vector<int32_t>> random(sequences_.size());
  for (std::vector<int32_t>& drafts : random)
    for (int64_t i = 0; i < kind_.drafts; ++i)
      drafts.push_back(static_cast<int32_t>(rng_.below(executor_.vocab())));
  return random;
}

// Drafts of a round that hold.
int64_t Rounds::accepted() {
  int64_t held = 0;
  for (const double chance : kind_.chances) {
    if (rng_.uniform() >= chance) break;
    ++held;
  }
  return held;
}

void Rounds::step() {
  const auto begin = Clock::now();
  std::vector<std::vector<int32_t>> ids = drafts();
  draft_seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  std::vector<Work> work;
  SampleLists greedy(executor_.vocab());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (std::ssize(ids[i]) < kind_.drafts)
      fail(ErrorCode::kUnsupported, "the drafter computes numbers that are not finite");
    ids[i].insert(ids[i].begin(), tokens_[i]);
    work.push_back(
        {.seq = sequences_[i], .ids = ids[i], .logits = Work::Logits::kAll, .drafted = true});
    for (size_t row = 0; row < ids[i].size(); ++row) greedy.add({.temperature = 0}, 0);
  }
  executor_.start(work);
  const std::vector<Sampled> chosen = executor_.sample(greedy.rows());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t held = accepted();
    for (int64_t row = 0; row <= held; ++row) executor_.commit_one(sequences_[i]);
    executor_.cache().truncate(sequences_[i], executor_.cache().length(sequences_[i]));
    tokens_[i] = chosen[i * ids[i].size() + static_cast<size_t>(held)].id;
    given_ += 1 + held;
  }
  executor_.keep_streams();
}

}  // namespace dsv4::apps
