#include "dsv4/convert/recipe_codebooks.h"

#include <algorithm>
#include <bit>

#include "dsv4/base/mapped_file.h"

namespace dsv4 {

UserCodebooks read_codebooks(const Recipe& recipe) {
  UserCodebooks books;
  for (const Rule& rule : recipe.rules) {
    if (rule.target.book != Target::Book::kFile) continue;
    const std::string& file = rule.target.file;
    books[file] = parse_codebook(read_text_file(file, size_t{1} << 20), rule.target.bits, file);
  }
  return books;
}

Codebook codebook_of(const Target& target, const UserCodebooks& files) {
  switch (target.book) {
    case Target::Book::kNf:
      return nf_codebook(target.bits);
    case Target::Book::kE2m1:
      return e2m1_codebook();
    case Target::Book::kFile:
      return files.at(target.file);
    case Target::Book::kBnf:
      return bnf_codebook(target.bits);
    case Target::Book::kE4m3:
    case Target::Book::kDefault:
      break;
  }
  return e4m3_codebook(target.bits);
}

std::string codebook_name(std::span<const float> values) {
  const int bits = std::countr_zero(values.size());
  if (!std::has_single_bit(values.size()) || !is_kbit(bits)) return "own";
  const auto holds = [&](const Codebook& book) {
    return std::ranges::equal(values, book.values());
  };
  if (holds(nf_codebook(bits))) return "nf";
  if (holds(bnf_codebook(bits))) return "bnf";
  if (bits == 4 && holds(e2m1_codebook())) return "e2m1";
  return holds(e4m3_codebook(bits)) ? "e4m3" : "own";
}

}  // namespace dsv4
