// Rounds of speculation for `dsv4 bench decode --draft-tokens k`: what they cost, where drafts hold
// by chance. A synthetic model guesses nothing right, and a real one on random text little; with
// given chances the time of a round and the tokens that it gives can be measured apart from both
// (docs/speculation.md).
//
// Every round does what the engine's do: drafts, one step over 1 + k tokens of each sequence, all
// rows sampled, the accepted ones committed, the others taken back.

#pragma once

#include <string>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/engine/executor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct RoundOptions {
  std::string draft_tokens, accept, source = "lookup", draft_head = "auto";
};
void add_round_options(CLI::App& command, RoundOptions& options);

struct RoundKind {
  int64_t drafts = 0;                        // of each round; 0: plain steps
  std::vector<double> chances;               // [drafts] that a draft holds if those before it do
  DrafterKind drafter = DrafterKind::kNone;  // kNone: drafts cost nothing
  bool draft_head = false;                   // CacheLimits::draft_head

  double expected_tokens() const;  // of a round
};
// One for each of --draft-tokens; plain steps where there is none. Throws kBadInput for options
// that do not go together.
std::vector<RoundKind> round_kinds(const RoundOptions& options, bool on_gpu);

class Rounds {
 public:
  // The executor has limits for the kind; the sequences are open.
  Rounds(Executor& executor, const RoundKind& kind, std::vector<SeqId> sequences,
         std::vector<int32_t> tokens, uint64_t seed);

  void step();
  int64_t tokens() const { return given_; }                // of all rounds so far
  double draft_seconds() const { return draft_seconds_; }  // of the last round

 private:
  std::vector<std::vector<int32_t>> drafts();
  int64_t accepted();

  Executor& executor_;
  const RoundKind kind_;
  std::vector<SeqId> sequences_;
  std::vector<int32_t> tokens_;  // the newest of each
  Rng rng_;
  int64_t given_ = 0;
  double draft_seconds_ = 0;
};

}  // namespace dsv4::apps
