// The imatrix files of llama.cpp, both forms, and the names that its DeepSeek-V4 models have:
//
//   GGUF         NAME.in_sum2 F32 [k, matrices], the sums of squares, and NAME.counts F32
//                [1, matrices], the tokens of each
//   legacy .dat  I32 entries, then for each I32 length, the name, I32 calls, I32 values, and
//                F32 [values] = mean square * calls, all matrices of the name one after the other
//
// The experts of a layer are the matrices of one name: blk.3.ffn_gate_exps.weight. The drafter is
// the block after the model's layers.

#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

// Means of the squares of each matrix: [matrices, k], one after the other. Matrices that saw no
// token have zeros.
struct LlamaImatrix {
  struct Entry {
    std::vector<float> values;
    std::vector<float> counts;  // [matrices]; empty: not in the file
  };
  std::map<std::string, Entry> entries;  // by llama.cpp's name of the weight
};

bool is_gguf(std::span<const std::byte> bytes);

// Throws kBadInput naming `what` and the place when the bytes are not as described.
LlamaImatrix parse_llama_imatrix(std::span<const std::byte> bytes, const std::string& what);

struct LlamaName {
  std::string name;     // empty: llama.cpp has no such weight
  int64_t matrix = -1;  // the expert; -1: the name has one matrix, or parts of one
};
// Names a weight of a model with so many layers: layers.3.ffn.experts.7.w1 ->
// blk.3.ffn_gate_exps.weight, 7.
LlamaName llama_name(std::string_view weight, int64_t layers);

}  // namespace dsv4
