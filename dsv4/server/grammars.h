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

class Grammars {
 public:
  Grammars(std::shared_ptr<const Tokenizer> tokenizer, const MarkerIds& markers)
      : tokenizer_(std::move(tokenizer)), markers_(markers) {}

  // The grammar that `make` made for this key, or makes now. Any thread may call it; what `make`
  // throws leaves.
  std::shared_ptr<TokenMasks> get(const EngineLimits& limits, const std::string& key,
                                  const std::function<Automaton()>& make);

  struct Size {
    size_t count = 0, bytes = 0;  // of those that are kept
    int64_t compiles = 0;         // in all
    double compile_seconds = 0;
  };
  Size size() const;

 private:
  static constexpr size_t kMaxGrammars = 64;
  static constexpr size_t kMaxBytes = size_t{256} << 20;     // of all, about
  static constexpr size_t kMaxMaskBytes = size_t{32} << 20;  // of one

  struct Kept {
    std::shared_ptr<TokenMasks> masks;
    std::list<std::string>::iterator use;
  };
  std::shared_ptr<TokenMasks> find(const std::string& key);
  void drop_oldest();

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const MarkerIds& markers_;
  mutable std::mutex mutex_;
  int64_t compiles_ = 0;
  double compile_seconds_ = 0;
  std::once_flag tree_made_;
  std::shared_ptr<const TokenTree> tree_;  // made for the first grammar
  std::map<std::string, Kept> kept_;
  std::list<std::string> uses_;  // the latest first
};

}  // namespace dsv4
