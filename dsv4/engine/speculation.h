// Speculation: a step computes several tokens of an answer at once, where it can guess them
// (docs/speculation.md). Drafts only guess; the sampler decides.
//
//   round of a request   newest token y, drafts d1 .. dk
//   step                 [y, d1, .., dk] go through the network together
//   row i = 0 .. k       is sampled as the plain step would sample it: the request's parameters,
//                        the mask and the terms after d1 .. di, the counter generated + i
//   accepted             row 0, and row i while d1 .. di equal what rows 0 .. i - 1 gave
//
// By induction every accepted row has the context, and so the token, of the plain step: the answer
// depends on no draft. Engine commits a row's token to the caches when it accepts the row.
//
// Here: which drafts a request gets in a step, and what became of them. The host's own drafts are
// tokens that a grammar forces, the caller's prediction, and lookup, in this order; or the model's
// drafter guesses instead of them, where that is expected to give more tokens per second.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dsv4/engine/draft_policy.h"
#include "dsv4/engine/lookup.h"
#include "dsv4/engine/token_constraint.h"

namespace dsv4 {

struct RequestState;

inline constexpr int64_t kMaxDrafts = 7;  // of a request in a step

enum class DraftSource : uint8_t { kGrammar, kPrediction, kLookup, kDrafter };
inline constexpr size_t kNumDraftSources = 4;
const char* name(DraftSource source);

// What became of drafts.
struct DraftCounts {
  std::array<int64_t, kNumDraftSources> drafted{}, accepted{};  // [source]

  int64_t all_drafted() const;
  int64_t all_accepted() const;
  DraftCounts& operator+=(const DraftCounts& other);
};

struct SpeculationStats {
  DraftCounts counts;
  // [i]: rounds that had a draft i + 1, and in which it held.
  std::array<int64_t, kMaxDrafts> drafted_at{}, accepted_at{};
  std::array<int64_t, kMaxDrafts + 1> round_tokens{};  // [n]: rounds that gave n + 1 tokens
  int64_t rounds = 0;                                  // of requests, with at least one draft
  int64_t tokens = 0;                                  // that they gave
  double draft_seconds = 0;                            // spent on choosing drafts
  int64_t failed = 0;  // times that the drafter computed something that is not a number
  int64_t chosen = 0;  // drafts of each request at most, in the latest step that could have some
};

// A request that wants drafts.
struct DraftWant {
  const RequestState* request = nullptr;
  std::span<const int32_t> tokens;  // of the request, the newest last
  int64_t most = 0;
  std::vector<int32_t> drafts;  // the answer: at most so many
  std::vector<float> chances;   // that each holds if those before it do, by the drafter; or empty
  bool failed = false;          // it computed something that is not a number
};

// A model that guesses, or a script of a test.
class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual void propose(std::span<DraftWant> wants) = 0;
  virtual int64_t most() const { return kMaxDrafts; }  // of a request in a step
  // It makes all drafts of a request in one pass, and so takes as long for few of them.
  virtual bool one_pass() const { return false; }
};

// The drafts of a request in one step. A round without drafts is a plain step.
struct Round {
  struct Draft {
    int32_t token = -1;
    DraftSource source{};
    float said = -1;  // that it holds if those before it do, by a drafter that says so; else -1
  };
  // A row of logits has a place in the constraint, and a mask once it is known.
  struct Row {
    TokenConstraint::State state = 0;
    bool restricted = false;
    std::vector<uint32_t> mask;  // [ceil(V / 32)]; empty: not made yet, or every token is allowed
  };
  std::vector<Draft> drafts;
  // After them: the step has no place for it, but it is judged too.
  std::optional<Draft> left_out;
  // Instead of which the drafter guesses: it is judged by the first token of the round.
  std::optional<Draft> set_aside;
  std::vector<Row> rows;            // 1 + drafts; empty in a request without a constraint
  std::vector<int32_t> ids;         // the newest token and the drafts, for the step
  size_t accepted_rows = SIZE_MAX;  // at most; fewer than there are where the constraint has failed
  int64_t masks = 0;                // that the constraint has made
};

// What speculation keeps of a request between steps.
struct DraftState {
  std::unique_ptr<Lookup> lookup;
  std::vector<HoldRate> rates;  // [source]
};

class Speculation {
 public:
  struct Options {
    bool on = false;
    int64_t draft_tokens = 0;          // of every round; 0: chosen
    std::shared_ptr<Drafter> drafter;  // null: none
    int32_t vocab = 0;
  };
  explicit Speculation(Options options);

  bool on() const { return options_.on; }
  // Finds the drafts that the host knows, for a request that decodes, and says how many more tokens
  // than one it may compute in the next step.
  int64_t want(RequestState& request);
  struct Proposal {
    RequestState* request;
    int64_t most;
  };
  // Lowers `most`, which want() has said, to the drafts of each request that pay. Own drafts in
  // whose place the drafter shall guess are set aside.
  void choose(std::span<Proposal> decoding);
  // The step has room for so many of them.
  static void limit(RequestState& request, int64_t most);
  // The drafter's guesses, for requests that have no other drafts; those that do not pay by what
  // the drafter says of them are left out.
  void propose(std::span<const Proposal> proposals);
  // The round gave these tokens; its first drafts held, up to the last token.
  struct Given {
    int64_t tokens = 0;
    int32_t first = -1, last = -1;
  };
  DraftCounts count(RequestState& request, const Given& given);
  // A step without prompts took so long, its propose() included.
  void observe(int64_t tokens, double seconds);
  const SpeculationStats& stats() const { return stats_; }

 private:
  bool add(RequestState& request, const Round::Draft& draft) const;
  int64_t most_guesses(int64_t most) const;  // of the drafter
  void leave_out(std::span<const Proposal> proposals);
  double chance(const RequestState& request, const Round::Draft& draft) const;
  int64_t most_drafts(const RequestState& request) const;
  DraftOffer offer_of(const Proposal& proposal) const;
  void judge(RequestState& request, const Round::Draft& draft, bool held);

  const Options options_;
  const size_t words_;  // of a mask
  // [source] of all requests: where those of a new one begin.
  std::array<HoldRate, kNumDraftSources> rates_{HoldRate(1), HoldRate(0.8), HoldRate(0.5),
                                                HoldRate(0.8)};
  // How often drafts held of which the drafter said so, over what it said.
  CalibratedChance said_;
  DraftPolicy policy_;
  double drafter_seconds_ = 0;  // of propose(), for the step that is computed next
  SpeculationStats stats_;
};

}  // namespace dsv4
