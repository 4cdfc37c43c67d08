// A compiled regular expression (PCRE2: UTF-8, Unicode properties, JIT where the machine allows
// it).
//
// Constant after construction, so threads may share one Regex; each thread has its own
// Scratch.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace dsv4 {

struct RegexMatch {
  size_t begin, end;  // byte offsets, begin < end
};

class Regex {
 public:
  class Scratch {
   public:
    // text_bytes: of all texts together that this scratch is used for; the steps that patterns may
    // take grow with it.
    explicit Scratch(size_t text_bytes = 0);

   private:
    friend class Regex;
    struct Free {
      void operator()(pcre2_real_match_data_8* data) const;
      void operator()(pcre2_real_match_context_8* context) const;
    };
    std::unique_ptr<pcre2_real_match_data_8, Free> data_;
    std::unique_ptr<pcre2_real_match_context_8, Free> context_;
    uint64_t steps_left_;
  };

  // `pattern` as tokenizer.json writes it (pattern.h). kBadInput if it does not compile,
  // kUnsupported if PCRE2 would interpret it differently, or if it can match the empty string.
  explicit Regex(const std::string& pattern);

  // The leftmost match at or after `from`. `text` is valid UTF-8. A pattern that needs an
  // unreasonable number of steps, for one match or for all of them together, is an Error
  // (kBadInput), never a missed match.
  std::optional<RegexMatch> find(std::string_view text, size_t from, Scratch& scratch) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace dsv4
