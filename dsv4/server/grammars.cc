#include "dsv4/server/grammars.h"

#include <algorithm>
#include <chrono>

namespace dsv4 {

std::shared_ptr<TokenMasks> Grammars::get(const EngineLimits& limits, const std::string& key,
                                          const std::function<Automaton()>& make) {
  if (auto known = find(key)) return known;
  // Without the lock: a large schema takes a while. Two requests may compile the same grammar.
  const auto begin = std::chrono::steady_clock::now();
  Automaton automaton = make();
  std::call_once(tree_made_, [&] {
    tree_ = std::make_shared<const TokenTree>(*tokenizer_, markers_, limits.eos, limits.vocab_size);
  });
  auto masks = std::make_shared<TokenMasks>(std::move(automaton), tree_, kMaxMaskBytes);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  ++compiles_;
  compile_seconds_ += spent.count();
  if (const auto known = kept_.find(key); known != kept_.end()) return known->second.masks;
  drop_oldest();
  uses_.push_front(key);
  kept_[key] = {masks, uses_.begin()};
  return masks;
}

std::shared_ptr<TokenMasks> Grammars::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto known = kept_.find(key);
  if (known == kept_.end()) return nullptr;
  uses_.splice(uses_.begin(), uses_, known->second.use);
  return known->second.masks;
}

Grammars::Size Grammars::size() const {
  const std::lock_guard lock(mutex_);
  Size size{.count = kept_.size(), .compiles = compiles_, .compile_seconds = compile_seconds_};
  for (const auto& [key, kept] : kept_) size.bytes += kept.masks->bytes();
  return size;
}

// Grammars that answers still use stay alive with them.
void Grammars::drop_oldest() {
  size_t bytes = 0;
  for (const auto& [key, kept] : kept_) bytes += kept.masks->bytes();
  while (!uses_.empty() && (kept_.size() >= kMaxGrammars || bytes > kMaxBytes)) {
    const auto oldest = kept_.find(uses_.back());
    bytes -= std::min(bytes, oldest->second.masks->bytes());
    kept_.erase(oldest);
    uses_.pop_back();
  }
}

}  // namespace dsv4
