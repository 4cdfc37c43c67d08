// A recipe maps weights to formats. Text, one rule per line, the last match wins, `#` starts a
// comment:
//
//   PATTERN  [LAYERS]  FORMAT
//
//   experts            k3          # all routed experts
//   experts.down       k4          # w2 of them (gate = w1, up = w3, down = w2)
//   experts  40-42,mtp k4-nf       # those of some layers and of the drafter's blocks
//   dense              fp8         # the weights that official checkpoints store as FP8
//   (weight_name.h) attn.wq_b          k5          # one projection head               keep # as
//   stored in the source, also the default without a rule
//
// PATTERN  dense, or a part, optionally with one of its leaves: experts, shared_experts, attn,
//          indexer, compressor, gate, mtp, head, embed
// LAYERS   numbers and ranges, separated by commas; `mtp` is the drafter. Default: everywhere
// FORMAT   keep | bf16 | fp8 | mxfp4 | nvfp4 | k2..k5 with an optional codebook: -nf, -bnf,
//          -e2m1 (k4), -e4m3, -@FILE (2^K numbers). Without one a weight gets that of the fastest
//          kernels: -e4m3, but experts -bnf at k5, and MXFP4 and NVFP4 weights -e2m1 at k4, which
//          for MXFP4 is the lossless import. fp8 is E4M3 with UE8M0 scales of 128 x 128 blocks.
//
// Parsing reads no files and limits its memory; errors are kBadInput with file, line and word.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/convert/weight_name.h"
#include "dsv4/formats/codebook.h"

namespace dsv4 {

struct Target {
  enum class Kind : uint8_t { kKeep, kBF16, kFp8, kMxfp4, kNvfp4, kKbit };
  enum class Book : uint8_t { kDefault, kNf, kBnf, kE2m1, kE4m3, kFile };

  Kind kind = Kind::kKeep;
  int bits = 0;  // kKbit: K
  Book book = Book::kDefault;
  std::string file;  // Book::kFile

  bool operator==(const Target&) const = default;
};

inline bool is_fp4(const Target& target) {
  return target.kind == Target::Kind::kMxfp4 || target.kind == Target::Kind::kNvfp4;
}

std::string to_string(const Target& target);  // in recipe syntax

struct Rule {
  bool dense = false;  // the pattern `dense`; otherwise:
  WeightPart part = WeightPart::kOther;
  std::string_view leaf;                    // empty: all of the part
  std::vector<std::pair<int, int>> layers;  // first and last of each range
  bool everywhere = true, drafter = false;  // no LAYERS given; LAYERS includes `mtp`
  Target target;
  std::string where;  // "recipe.txt:3"

  bool matches(const WeightName& weight) const;
};

struct Recipe {
  std::vector<Rule> rules;
  std::string text;  // the parsed text

  // The last rule that matches the weight; nullptr means keep.
  const Rule* rule_for(const WeightName& weight) const;
  void append(const Recipe& later);
};

// `what` names the text in errors.
Recipe parse_recipe(std::string_view text, const std::string& what);

// The rules given by --experts and --dense; either may be empty.
Recipe recipe_of_flags(std::string_view experts, std::string_view dense);

// 2^bits numbers separated by blanks or commas, with `#` comments.
Codebook parse_codebook(std::string_view text, int bits, const std::string& what);

}  // namespace dsv4
