#include "dsv4/quality/needle.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int32_t>;

constexpr int64_t kTokensPerDistractor = 100;

std::string replaced(std::string text, std::string_view name, std::string_view value) {
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size())
    text.replace(at, name.size(), value);
  return text;
}

struct Fact {
  const NeedleFacts* facts;
  std::string key, value;

  std::string fill(const std::string& text) const {
    return replaced(replaced(text, "{key}", key), "{value}", value);
  }
  std::string question() const { return fill(facts->question); }
  // Number of tokens of the fact after its value.
  int64_t tail(const Tokenizer& tokenizer) const {
    const std::string head = facts->fact.substr(0, facts->fact.rfind("{value}") + 7);
    return static_cast<int64_t>(tokenizer.encode(fill(facts->fact)).size()) -
           static_cast<int64_t>(tokenizer.encode(fill(head)).size());
  }
};

template <class T>
const T& draw(Rng& rng, const std::vector<T>& list) {
  return list[static_cast<size_t>(rng.below(static_cast<int64_t>(list.size())))];
}

// Up to `count` facts with distinct questions; fewer when the lists hold no more.
std::vector<Fact> draw_facts(const NeedleTemplate& form, Rng& rng, int64_t count) {
  std::vector<Fact> facts;
  std::set<std::string> questions;
  for (int64_t tries = 0; tries < 100 * count && static_cast<int64_t>(facts.size()) < count;
       ++tries) {
    const NeedleFacts& family = draw(rng, form.facts);
    Fact fact{&family, draw(rng, family.keys), draw(rng, family.values)};
    if (questions.insert(fact.question()).second) facts.push_back(std::move(fact));
  }
  return facts;
}

// `count` tokens of lines: `lines` plus as much filler as needed, in random order. The first line
// is cut at its start, so that the count is exact.
Ids draw_between(const NeedleTemplate& form, const Tokenizer& tokenizer, Rng& rng,
                 std::vector<Ids> lines, int64_t count) {
  int64_t used = 0;
  for (const Ids& line : lines) used += static_cast<int64_t>(line.size());
  while (used < count) {
    lines.push_back(tokenizer.encode(draw(rng, form.filler)));
    used += static_cast<int64_t>(lines.back().size());
  }
  if (lines.empty()) return {};
  // used - count < size of the last line, which was needed to reach the count.
  Ids between(lines.back().begin() + (used - count), lines.back().end());
  lines.pop_back();
  for (size_t i = lines.size(); i > 1; --i)
    std::swap(lines[i - 1], lines[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  for (const Ids& line : lines) between.insert(between.end(), line.begin(), line.end());
  return between;
}

std::string_view trimmed(std::string_view text) {
  const auto* begin =
      std::find_if(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) == 0; });
  return text.substr(static_cast<size_t>(begin - text.begin()));
}

}  // namespace

NeedlePrompt make_needle(const NeedleTemplate& form, const Tokenizer& tokenizer, int32_t bos,
                         int64_t distance, uint64_t seed) {
  Rng rng(seed);
  const std::vector<Fact> facts = draw_facts(form, rng, 1 + form.distractors);
  const Fact& target = facts.front();
  const Ids question = tokenizer.encode(target.question());
  const int64_t between = distance - static_cast<int64_t>(question.size()) - target.tail(tokenizer);
  if (between < 0) {
    fail(ErrorCode::kBadInput, "a distance of {} tokens is shorter than the question itself: {}",
         distance, distance - between);
  }
  std::vector<Ids> others;
  int64_t room = between;
  for (size_t i = 1; i < facts.size() && room >= kTokensPerDistractor; ++i) {
    others.push_back(tokenizer.encode(facts[i].fill(facts[i].facts->fact)));
    room -= kTokensPerDistractor;
  }
  NeedlePrompt prompt;
  const auto append = [&](const Ids& ids) {
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
  };
  if (bos >= 0) prompt.ids.push_back(bos);
  if (rng.uniform() < 0.5) append(tokenizer.encode(draw(rng, form.filler)));
  append(tokenizer.encode(target.fill(target.facts->fact)));
  append(draw_between(form, tokenizer, rng, std::move(others), between));
  append(question);
  prompt.answer = target.fill(target.facts->answer);
  prompt.answer_tokens = static_cast<int64_t>(tokenizer.encode(prompt.answer).size());
  return prompt;
}

bool is_right(std::string_view reply, std::string_view answer) {
  reply = trimmed(reply);
  answer = trimmed(answer);
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  if (answer.empty() || reply.substr(0, answer.size()) != answer) return false;
  return reply.size() == answer.size() || !is_word(answer.back()) || !is_word(reply[answer.size()]);
}

}  // namespace dsv4
