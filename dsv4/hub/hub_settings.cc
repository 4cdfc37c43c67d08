#include "dsv4/hub/hub_settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "dsv4/base/ascii.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxToken = 10000;  // bytes

// HF_HOME, or huggingface/ in the folder of caches.
std::string hub_home() {
  if (std::string home = env("HF_HOME"); !home.empty()) return home;
  if (const std::string caches = env("XDG_CACHE_HOME"); !caches.empty())
    return caches + "/huggingface";
  const std::string home = env("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface";
}

std::string token_file() {
  if (std::string path = env("HF_TOKEN_PATH"); !path.empty()) return path;
  const std::string home = hub_home();
  return home.empty() ? "" : home + "/token";
}

}  // namespace

std::string hub_cache_folder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string folder = env(variable); !folder.empty()) return folder;
  }
  const std::string home = hub_home();
  return home.empty() ? "" : home + "/hub";
}

bool hub_is_offline() {
  const std::string value = lower_case(env("HF_HUB_OFFLINE"));
  constexpr std::array<std::string_view, 4> kYes = {"1", "true", "yes", "on"};
  return std::ranges::find(kYes, value) != kYes.end();
}

std::string hub_endpoint() {
  std::string url = env("HF_ENDPOINT");
  while (url.ends_with('/')) url.pop_back();
  return url.empty() ? "https://huggingface.co" : url;
}

std::string hub_token() {
  std::string token(trimmed(env("HF_TOKEN"))), from = "HF_TOKEN";
  if (token.empty()) {
    from = token_file();
    if (from.empty() || !is_present(from)) return "";
    token = trimmed(read_text_file(from, kMaxToken));
  }
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::ranges::all_of(token, printable))
    fail(ErrorCode::kBadInput, "{} holds characters that no token has", from);
  return token;
}

}  // namespace dsv4
