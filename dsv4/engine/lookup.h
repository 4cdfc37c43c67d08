// Drafts that cost no model: text that repeats text (docs/speculation.md).
//
//   prediction   the answer as the caller expects it: followed from its beginning, and found again
//                by the last tokens of the answer where the answer leaves it
//   lookup       the prompt and the answer so far: what followed the last tokens before
//
// The search is for the last 4 tokens, then the last 3, and in a prediction also the last 2;
// shorter matches are rarely right. If there are several matches, the latest one is used. A wrong
// guess costs time and changes no token.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace dsv4 {

// Where the sequences of n tokens of a growing text end. Of two whose hashes share a place, the
// earlier one is forgotten.
class NgramIndex {
 public:
  explicit NgramIndex(int n) : n_(static_cast<size_t>(n)) {}

  // Enters those that some token of the text follows. The text begins as at the call before.
  void extend(std::span<const int32_t> text);
  // The position in `text` after the latest one that equals the last n tokens of `tail`; 0: none.
  size_t find(std::span<const int32_t> text, std::span<const int32_t> tail) const;

 private:
  size_t place(std::span<const int32_t> ngram) const;
  void grow(std::span<const int32_t> text);

  size_t n_;
  size_t end_ = 0;              // those that end before it, or at it, are entered
  std::vector<uint32_t> ends_;  // by hash; 0: none
};

// The guesses for one request.
class Lookup {
 public:
  explicit Lookup(std::span<const int32_t> prediction);

  // The guesses that are taken next come after these tokens, of which the first `prompt` are the
  // prompt. They begin as at the call before.
  void begin(std::span<const int32_t> tokens, size_t prompt);
  struct Guess {
    int32_t token = -1;
    bool predicted = false;  // by the caller
  };
  // What may come after the tokens and the drafts that were taken since; nothing: no idea.
  std::optional<Guess> next();
  void take(int32_t draft);

 private:
  struct Source {
    std::span<const int32_t> text;
    std::vector<NgramIndex> by_length;  // longest first
    size_t at = 0;                      // the token that is the next guess
    bool following = false;             // `at` holds

    void find(std::span<const int32_t> tail);
    void take(int32_t token);
  };

  std::vector<int32_t> prediction_;
  Source predicted_, own_;
  size_t begun_ = 0;           // tokens of the answer that the prediction has been held to
  size_t resume_at_ = 0;       // in the prediction, where the answer is
  bool resumes_ = true;        // the answer follows the prediction there
  std::vector<int32_t> tail_;  // the last tokens, and the drafts
};

}  // namespace dsv4
