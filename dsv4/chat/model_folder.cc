#include "dsv4/chat/model_folder.h"

#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/fields.h"

namespace dsv4 {
namespace {

std::optional<std::string> read_if_exists(const std::string& path) {
  if (!is_present(path)) return std::nullopt;
  return read_text_file(path, size_t{16} << 20);
}

std::optional<JsonValue> read_json_if_exists(const std::string& path) {
  const auto text = read_if_exists(path);
  if (!text) return std::nullopt;
  return parse_json(*text, path);
}

}  // namespace

ChatOptions chat_options_of_folder(const std::string& folder, const std::string& effort_profile,
                                   const std::string& thinking) {
  ChatOptions chat;
  chat.profile = effort_profile == "official" ? EffortProfile::kOfficial
                 : effort_profile == "preview"
                     ? EffortProfile::kPreview
                     : detect_effort_profile(read_if_exists(folder + "/encoding/encoding_dsv4.py"),
                                             read_json_if_exists(folder + "/config.json"));
  if (thinking != "auto") {
    chat.default_thinking = thinking == "on";
  } else if (const auto config = read_json_if_exists(folder + "/generation_config.json")) {
    chat.default_thinking = Field(&*config, "").at("default_thinking").boolean(true);
  }
  return chat;
}

}  // namespace dsv4
