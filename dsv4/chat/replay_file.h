// The replay map as one file, so that it outlives the program together with the disk tier of the
// prefix cache (docs/spec/serving.md 1.7).
//
//   "DSV4RPM1", SHA-256 of the tokenizer's file [32], u64 turns
//   each turn, the one not used for the longest time first:
//     key [32], u32 ids, u32 bytes of text, ids i32, text
//   SHA-256 of everything before [32]
//
// Little-endian. The file appears whole or not at all, readable by the owner only.

#pragma once

#include <string>

#include "dsv4/chat/replay_map.h"

namespace dsv4 {

// DIR/replay-0123456789abcdef.map, by the tokenizer: its ids mean nothing to another one.
std::string replay_file(const std::string& folder, const std::string& tokenizer_json);

// Throws kIo.
void save_replay_map(const ReplayMap& map, const std::string& path,
                     const std::string& tokenizer_json);
// Adds the turns of the file; without a file nothing. Throws kBadInput for one that is damaged or
// of another tokenizer; then the map is as it was.
void load_replay_map(ReplayMap& map, const std::string& path, const std::string& tokenizer_json);

}  // namespace dsv4
