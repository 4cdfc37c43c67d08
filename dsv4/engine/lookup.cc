#include "dsv4/engine/lookup.h"

#include <algorithm>
#include <bit>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr size_t kLongest = 4;  // tokens that are looked for

}  // namespace

size_t NgramIndex::place(std::span<const int32_t> ngram) const {
  uint64_t hash = 0;
  for (const int32_t token : ngram)
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(hash >> 32) & (ends_.size() - 1);
}

// To twice the places that the text needs, a power of two.
void NgramIndex::grow(std::span<const int32_t> text) {
  ends_.assign(std::bit_ceil(std::max<size_t>(4 * text.size(), 256)), 0);
  end_ = 0;
}

void NgramIndex::extend(std::span<const int32_t> text) {
  if (2 * text.size() > ends_.size()) grow(text);
  for (; end_ + 1 < text.size(); ++end_) {
    const size_t end = end_ + 1;
    if (end >= n_) ends_[place(text.subspan(end - n_, n_))] = static_cast<uint32_t>(end);
  }
}

size_t NgramIndex::find(std::span<const int32_t> text, std::span<const int32_t> tail) const {
  if (tail.size() < n_ || ends_.empty()) return 0;
  const std::span<const int32_t> wanted = tail.last(n_);
  const size_t end = ends_[place(wanted)];
  return end > 0 && std::ranges::equal(text.subspan(end - n_, n_), wanted) ? end : 0;
}

void Lookup::Source::find(std::span<const int32_t> tail) {
  following = false;
  for (const NgramIndex& index : by_length) {
    at = index.find(text, tail);
    following = at > 0;
    if (following) return;
  }
}

void Lookup::Source::take(int32_t token) {
  following = following && text[at] == token && ++at < text.size();
}

Lookup::Lookup(std::span<const int32_t> prediction)
    : prediction_(prediction.begin(), prediction.end()) {
  for (const int n : {4, 3}) own_.by_length.emplace_back(n);
  for (const int n : {4, 3, 2}) predicted_.by_length.emplace_back(n);
  predicted_.text = prediction_;
  for (NgramIndex& index : predicted_.by_length) index.extend(prediction_);
}

void Lookup::begin(std::span<const int32_t> tokens, size_t prompt) {
  own_.text = tokens;
  for (NgramIndex& index : own_.by_length) index.extend(tokens);
  for (; prompt + begun_ < tokens.size(); ++begun_) {
    resumes_ = resumes_ && resume_at_ < prediction_.size() &&
               prediction_[resume_at_] == tokens[prompt + begun_];
    ++resume_at_;
  }
  const std::span<const int32_t> last = tokens.last(std::min(tokens.size(), kLongest));
  tail_.assign(last.begin(), last.end());
  own_.find(tail_);
  predicted_.at = resume_at_;
  predicted_.following = resumes_ && resume_at_ < prediction_.size();
  // Where the answer has left the prediction, it may be in it again further on.
  if (predicted_.following || prediction_.empty()) return;
  predicted_.find(std::span(tail_).last(std::min(tail_.size(), begun_)));
  if (predicted_.following) resumes_ = true, resume_at_ = predicted_.at;
}

std::optional<Lookup::Guess> Lookup::next() {
  for (Source* source : {&predicted_, &own_}) {
    if (source->following)
      return Guess{.token = source->text[source->at], .predicted = source == &predicted_};
  }
  return {};
}

void Lookup::take(int32_t draft) {
  tail_.push_back(draft);
  for (Source* source : {&predicted_, &own_}) {
    source->take(draft);
    if (!source->following) source->find(tail_);
  }
}

}  // namespace dsv4
