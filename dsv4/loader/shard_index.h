// model.safetensors.index.json: {"metadata": anything, "weight_map": {NAME: FILE}}.

#pragma once

#include <map>
#include <string>
#include <string_view>

namespace dsv4 {

inline constexpr const char* kShardIndexFile = "model.safetensors.index.json";

// Stored tensor name -> file name inside the folder. Throws kBadInput, prefixed with `what`, for
// any other structure, a duplicate name, or a file name that points outside the folder.
std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& what);

}  // namespace dsv4
