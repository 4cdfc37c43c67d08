// The codebooks that a recipe names, and their names: the quantizer writes them, and a synthetic
// model has them in its tensors, so that a benchmark of `--experts k3` measures what `quantize
// --experts k3` writes.

#pragma once

#include <map>
#include <span>
#include <string>

#include "dsv4/convert/recipe.h"
#include "dsv4/formats/codebook.h"

namespace dsv4 {

using UserCodebooks = std::map<std::string, Codebook>;  // by the file's name in the recipe

// Reads the files of -@FILE. Throws kBadInput with file and value when one is not a codebook of its
// rule's K, which includes one file that is used for two K.
UserCodebooks read_codebooks(const Recipe& recipe);

// The codebook of a k-bit target. convert_list() has replaced Book::kDefault by the book that its
// weight gets; a default that is left is e4m3.
Codebook codebook_of(const Target& target, const UserCodebooks& files);

// The suffix of a format that has these values, "nf", "bnf", "e2m1" or "e4m3"; otherwise "own".
std::string codebook_name(std::span<const float> values);

}  // namespace dsv4
