// The grammars of a served model: compiled once for each schema or list of tools, and kept with the
// masks that answers have computed.

#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "dsv4/grammar/token_masks.h"
#include "dsv4/server/engine_port.h"

namespace dsv4 {

// How far the calls of tools that a request does not force are constrained, once the model has
// opened the block of calls.
enum class ToolGrammar {
  kOff,
  kTags,    // tags and names
  kStrict,  // and the arguments of tools with strict: true
  kAll,     // and those of all tools
};

struct GrammarLimits {
  size_t kept = 256;                          // grammars, whether answers use them or not
  size_t idle_bytes = size_t{256} << 20;      // those that no answer uses leave above this
  size_t most_bytes = size_t{1} << 30;        // of all: an answer that needs more fails
  size_t most_mask_bytes = size_t{32} << 20;  // of the masks of one
};

class Grammars {
 public:
  Grammars(std::shared_ptr<const Tokenizer> tokenizer, const MarkerIds& markers,
           const GrammarLimits& limits = {})
      : tokenizer_(std::move(tokenizer)),
        markers_(markers),
        limits_(limits),
        memory_(std::make_shared<GrammarMemory>(limits.most_bytes)) {}

  // The grammar that `make` made for this key, or makes now. Any thread may call it; what `make`
  // throws leaves.
  std::shared_ptr<TokenMasks> get(const EngineLimits& limits, const std::string& key,
                                  const std::function<Automaton()>& make);

  // Drops the oldest idle grammars where all have more than `idle_bytes`. Grammars grow while they
  // are used: called again and again, by any thread.
  void trim();

  struct Size {
    size_t count = 0;      // that are kept
    size_t bytes = 0;      // of those and of others that answers still use
    int64_t compiles = 0;  // in all
    double compile_seconds = 0;
  };
  Size size() const;

 private:
  struct Kept {
    std::shared_ptr<TokenMasks> masks;
    std::list<std::string>::iterator use;
  };
  std::shared_ptr<TokenMasks> find(const std::string& key);
  void trim_locked();

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const MarkerIds& markers_;
  const GrammarLimits limits_;
  const std::shared_ptr<GrammarMemory> memory_;
  mutable std::mutex mutex_;
  int64_t compiles_ = 0;
  double compile_seconds_ = 0;
  std::once_flag tree_made_;
  std::shared_ptr<const TokenTree> tree_;  // made for the first grammar
  std::map<std::string, Kept> kept_;
  std::list<std::string> uses_;  // the latest first
};

}  // namespace dsv4
