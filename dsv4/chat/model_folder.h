// What a model folder says about chat: encoding/encoding_dsv4.py, config.json and
// generation_config.json, each of which may be missing.

#pragma once

#include <string>

#include "dsv4/chat/request.h"

namespace dsv4 {

// `effort_profile`: official, preview or auto; `thinking`: on, off or auto.
ChatOptions chat_options_of_folder(const std::string& folder, const std::string& effort_profile,
                                   const std::string& thinking);

}  // namespace dsv4
