#include "dsv4/server/grammars.h"

#include <chrono>

namespace dsv4 {

std::shared_ptr<TokenMasks> Grammars::get(const EngineLimits& limits, const std::string& key,
                                          const std::function<Automaton()>& make) {
  if (auto known = find(key)) return known;
  trim();
  // Without the lock: a large schema takes a while. Two requests may compile the same grammar.
  const auto begin = std::chrono::steady_clock::now();
  Automaton automaton = make();
  std::call_once(tree_made_, [&] {
    tree_ = std::make_shared<const TokenTree>(*tokenizer_, markers_, limits.eos, limits.vocab_size);
  });
  auto masks =
      std::make_shared<TokenMasks>(std::move(automaton), tree_, limits_.most_mask_bytes, memory_);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  ++compiles_;
  compile_seconds_ += spent.count();
  if (const auto known = kept_.find(key); known != kept_.end()) return known->second.masks;
  uses_.push_front(key);
  kept_[key] = {masks, uses_.begin()};
  trim_locked();
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
  return {.count = kept_.size(),
          .bytes = memory_->bytes,
          .compiles = compiles_,
          .compile_seconds = compile_seconds_};
}

void Grammars::trim() {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

// Caller holds mutex_. Dropping a grammar that an answer uses would free nothing.
void Grammars::trim_locked() {
  for (auto use = uses_.end(); use != uses_.begin();) {
    const auto kept = kept_.find(*--use);
    const bool idle = kept->second.masks.use_count() == 1;
    const bool drop = kept_.size() > limits_.kept || (idle && memory_->bytes > limits_.idle_bytes);
    if (!drop) continue;
    kept_.erase(kept);
    use = uses_.erase(use);
  }
}

}  // namespace dsv4
