// What the environment says about Hugging Face's hub, by the variables and rules of
// huggingface_hub:
//
//   HF_HOME     its folder; by default huggingface/ in XDG_CACHE_HOME, or in ~/.cache
//
// An empty variable counts as one that is not set. Nothing here uses the network.

#pragma once

#include <string>

namespace dsv4 {

// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, or hub/ in HF_HOME; empty when nothing says where.
std::string hub_cache_folder();

// HF_HUB_OFFLINE is 1, true, yes or on.
bool hub_is_offline();

// HF_ENDPOINT or https://huggingface.co, without a '/' at the end.
std::string hub_endpoint();

// HF_TOKEN, or the text of the file HF_TOKEN_PATH or token in HF_HOME; empty: none. Throws
// kBadInput for one that cannot be part of a header.
std::string hub_token();

}  // namespace dsv4
