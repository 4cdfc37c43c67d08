// tokenizer.json (the format of the `tokenizers` package) as plain, validated data.
//
// Read: model (BPE), added_tokens, pre_tokenizer, decoder. Anything that would change the ids or
// the text and is not implemented (a normalizer, truncation, dropout, lstrip, other pre-tokenizers,
// ...) is an Error that names it. post_processor is ignored: it adds special tokens around a text
// (encode() never does) and adjusts offsets (we have none).

#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/text/added_tokens.h"
#include "dsv4/text/bpe.h"

namespace dsv4 {

struct TokenizerFile {
  std::vector<std::string> tokens;  // [id] the bytes that the id stands for; ids have no holes
  std::vector<int32_t>
      vocab_ids;  // ids of model.vocab: the possible results of merges and whole pieces
  std::array<int32_t, 256> byte_ids{};  // every byte is a token
  std::vector<Merge> merges;            // in order of rank
  std::vector<AddedToken> added;        // contents and ids are unique
  std::vector<std::string> patterns;    // the pre-tokenizer's, in order
  bool ignore_merges = false;           // a piece that is a token needs no merges
};

// `what` names the input in errors: "WHAT: model.merges[12]: ...".
TokenizerFile parse_tokenizer_json(std::string_view json, std::string_view what);

}  // namespace dsv4
