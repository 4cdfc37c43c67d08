#include "dsv4/convert/recipe.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxText = size_t{1} << 20;
constexpr size_t kMaxRules = 4096, kMaxRanges = 256;
constexpr int kMaxLayer = 9999;
constexpr std::string_view kBlanks = " \t\r,";

constexpr std::string_view kFormats =
    "keep, bf16, fp8, mxfp4, nvfp4, or k2 to k5 with or without a codebook -nf, -bnf, -e2m1 (k4), "
    "-e4m3 or -@FILE";

struct Alias {
  std::string_view alias, leaf;
};
constexpr Alias kExpertAliases[] = {{"gate", "w1"}, {"up", "w3"}, {"down", "w2"}};

[[noreturn]] void bad_word(const std::string& where, std::string_view word,
                           const std::string& want) {
  fail(ErrorCode::kBadInput, "{}: \"{}\": want {}", where, quotable(word), want);
}

// The words of a line, up to `#`.
std::vector<std::string_view> words_of(std::string_view line, std::string_view blanks) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = line.find_first_not_of(blanks);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(blanks), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

// Calls visit(number, line) for each line, numbers from 1.
template <class Visit>
void each_line(std::string_view text, const Visit& visit) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    visit(number, text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

std::string sorted_list(std::span<const std::string_view> names) {
  std::vector<std::string_view> sorted(names.begin(), names.end());
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const std::string_view name : sorted)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  return text;
}

std::string pattern_list() {
  std::string text = "dense";
  for (int part = 0; part < static_cast<int>(WeightPart::kOther); ++part)
    text += fmt::format(", {}", name(static_cast<WeightPart>(part)));
  return text;
}

void parse_pattern(std::string_view word, const std::string& where, Rule* rule) {
  const size_t dot = word.find('.');
  const std::string_view head = word.substr(0, dot);
  rule->dense = word == "dense";
  if (rule->dense) return;
  for (int i = 0; i < static_cast<int>(WeightPart::kOther); ++i) {
    if (head == name(static_cast<WeightPart>(i))) rule->part = static_cast<WeightPart>(i);
  }
  if (rule->part == WeightPart::kOther) bad_word(where, word, pattern_list());
  if (dot == std::string_view::npos) return;
  std::string_view leaf = word.substr(dot + 1);
  if (rule->part == WeightPart::kExperts || rule->part == WeightPart::kSharedExperts) {
    for (const Alias& entry : kExpertAliases) {
      if (leaf == entry.alias) leaf = entry.leaf;
    }
  }
  const auto all = leaves(rule->part);
  const auto at = std::find(all.begin(), all.end(), leaf);
  if (at == all.end())
    bad_word(where, word,
             all.empty() ? std::string(head)
                         : fmt::format("{} with or without .{{{}}}", head, sorted_list(all)));
  rule->leaf = *at;
}

int parse_layer(std::string_view text, std::string_view word, const std::string& where) {
  int layer = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (error != std::errc() || end != text.data() + text.size() || layer < 0 || layer > kMaxLayer)
    bad_word(where, word,
             fmt::format("layers of 0 to {} such as 0,5-7 or mtp, without spaces", kMaxLayer));
  return layer;
}

void parse_layers(std::string_view word, const std::string& where, Rule* rule) {
  if (rule->part == WeightPart::kHead || rule->part == WeightPart::kEmbed)
    fail(ErrorCode::kBadInput, "{}: \"{}\": {} is not part of a layer", where, quotable(word),
         name(rule->part));
  rule->everywhere = false;
  std::string_view rest = word;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    if (item == "mtp") {
      rule->drafter = true;
    } else {
      const size_t dash = item.find('-');
      const int first = parse_layer(item.substr(0, dash), word, where);
      const int last =
          dash == std::string_view::npos ? first : parse_layer(item.substr(dash + 1), word, where);
      if (last < first) bad_word(where, word, "ascending ranges");
      rule->layers.emplace_back(first, last);
    }
    if (rule->layers.size() > kMaxRanges) bad_word(where, word, "at most 256 ranges");
    if (comma == std::string_view::npos) return;
    rest.remove_prefix(comma + 1);
  }
}

Target parse_kbit(std::string_view word, const std::string& where) {
  Target target{.kind = Target::Kind::kKbit, .bits = word.size() > 1 ? word[1] - '0' : 0};
  const std::string_view book = word.substr(std::min<size_t>(2, word.size()));
  if (!is_kbit(target.bits)) bad_word(where, word, std::string(kFormats));
  if (book == "-nf") {
    target.book = Target::Book::kNf;
  } else if (book == "-bnf") {
    target.book = Target::Book::kBnf;
  } else if (book == "-e2m1" && target.bits == 4) {
    target.book = Target::Book::kE2m1;
  } else if (book == "-e4m3") {
    target.book = Target::Book::kE4m3;
  } else if (book.substr(0, 2) == "-@" && book.size() > 2) {
    target.book = Target::Book::kFile;
    target.file = book.substr(2);
  } else if (!book.empty()) {
    bad_word(where, word, std::string(kFormats));
  }
  return target;
}

Target parse_target(std::string_view word, const std::string& where) {
  if (word == "keep") return {.kind = Target::Kind::kKeep};
  if (word == "bf16") return {.kind = Target::Kind::kBF16};
  if (word == "fp8") return {.kind = Target::Kind::kFp8};
  if (word == "mxfp4") return {.kind = Target::Kind::kMxfp4};
  if (word == "nvfp4") return {.kind = Target::Kind::kNvfp4};
  if (word.substr(0, 1) == "k") return parse_kbit(word, where);
  bad_word(where, word, std::string(kFormats));
}

Rule parse_rule(const std::vector<std::string_view>& words, std::string where) {
  if (words.size() < 2 || words.size() > 3)
    fail(ErrorCode::kBadInput, "{}: {} words: want PATTERN [LAYERS] FORMAT, such as experts k3",
         where, words.size());
  Rule rule;
  rule.where = std::move(where);
  parse_pattern(words[0], rule.where, &rule);
  if (words.size() == 3) parse_layers(words[1], rule.where, &rule);
  rule.target = parse_target(words.back(), rule.where);
  // The engine reads embedding rows as floats.
  if (rule.part == WeightPart::kEmbed && rule.target.kind != Target::Kind::kKeep &&
      rule.target.kind != Target::Kind::kBF16)
    bad_word(rule.where, words.back(), "keep or bf16 for embed");
  return rule;
}

}  // namespace

std::string to_string(const Target& target) {
  switch (target.kind) {
    case Target::Kind::kKeep:
      return "keep";
    case Target::Kind::kBF16:
      return "bf16";
    case Target::Kind::kFp8:
      return "fp8";
    case Target::Kind::kMxfp4:
      return "mxfp4";
    case Target::Kind::kNvfp4:
      return "nvfp4";
    case Target::Kind::kKbit:
      break;
  }
  const std::string text = fmt::format("k{}", target.bits);
  switch (target.book) {
    case Target::Book::kDefault:
      break;
    case Target::Book::kNf:
      return text + "-nf";
    case Target::Book::kBnf:
      return text + "-bnf";
    case Target::Book::kE2m1:
      return text + "-e2m1";
    case Target::Book::kE4m3:
      return text + "-e4m3";
    case Target::Book::kFile:
      return fmt::format("{}-@{}", text, target.file);
  }
  return text;
}

bool Rule::matches(const WeightName& weight) const {
  if (dense ? !is_dense(weight)
            : weight.part == WeightPart::kOther || part != weight.part ||
                  (!leaf.empty() && leaf != weight.leaf))
    return false;
  if (everywhere) return true;
  if (weight.drafter) return drafter;
  return std::any_of(layers.begin(), layers.end(), [&](const std::pair<int, int>& range) {
    return range.first <= weight.layer && weight.layer <= range.second;
  });
}

const Rule* Recipe::rule_for(const WeightName& weight) const {
  const auto at = std::find_if(rules.rbegin(), rules.rend(),
                               [&](const Rule& rule) { return rule.matches(weight); });
  return at == rules.rend() ? nullptr : &*at;
}

void Recipe::append(const Recipe& later) {
  rules.insert(rules.end(), later.rules.begin(), later.rules.end());
  text += later.text;
}

Recipe parse_recipe(std::string_view text, const std::string& what) {
  if (text.size() > kMaxText)
    fail(ErrorCode::kBadInput, "{}: a recipe of {} bytes exceeds the limit of {}", what,
         text.size(), kMaxText);
  Recipe recipe;
  each_line(text, [&](int number, std::string_view line) {
    const auto words = words_of(line, kBlanks.substr(0, 3));
    if (words.empty()) return;
    if (recipe.rules.size() == kMaxRules)
      fail(ErrorCode::kBadInput, "{}:{}: more than {} rules", what, number, kMaxRules);
    recipe.rules.push_back(parse_rule(words, fmt::format("{}:{}", what, number)));
  });
  recipe.text = text;
  if (!recipe.text.empty() && recipe.text.back() != '\n') recipe.text += '\n';
  return recipe;
}

Recipe recipe_of_flags(std::string_view routed, std::string_view dense) {
  Recipe recipe;
  for (const auto& [pattern, format] : {std::pair("experts", routed), std::pair("dense", dense)}) {
    if (format.empty()) continue;
    const std::string flag = fmt::format("--{}", pattern);
    if (words_of(format, kBlanks.substr(0, 3)).size() != 1 || format.find('\n') != format.npos)
      bad_word(flag, format, std::string(kFormats));
    Recipe rule;
    rule.rules.push_back(parse_rule({pattern, format}, flag));
    rule.text = fmt::format("{} {}\n", pattern, format);
    recipe.append(rule);
  }
  return recipe;
}

Codebook parse_codebook(std::string_view text, int bits, const std::string& what) {
  std::vector<float> values;
  const size_t want = size_t{1} << bits;
  each_line(text, [&](int number, std::string_view line) {
    for (const std::string_view word : words_of(line, kBlanks)) {
      float value = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      if (error != std::errc() || end != word.data() + word.size())
        bad_word(fmt::format("{}:{}", what, number), word, "a number");
      if (values.size() == want)
        fail(ErrorCode::kBadInput, "{}:{}: more than the {} values of a {}-bit codebook", what,
             number, want, bits);
      values.push_back(value);
    }
  });
  if (values.size() != want)
    fail(ErrorCode::kBadInput, "{}: {} values: a {}-bit codebook has {}", what, values.size(), bits,
         want);
  Codebook book;
  try {
    book = user_codebook(values);
  } catch (const Error& error) {
    fail(ErrorCode::kBadInput, "{}: {}", what, error.what());
  }
  // Block scales reach from 2^-14 to 31: codebooks far outside would need scales that do not exist.
  constexpr float kLeast = 0x1p-64f, kMost = 0x1p64f;
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  if (!(largest >= kLeast && largest <= kMost))
    fail(ErrorCode::kBadInput, "{}: the largest magnitude is {}, want one from {} to {}", what,
         largest, kLeast, kMost);
  return book;
}

}  // namespace dsv4
