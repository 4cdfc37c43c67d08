#include "apps/hub_models.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/hub/hub_cache.h"
#include "dsv4/hub/hub_settings.h"

namespace dsv4::apps {

std::string find_in_hub_cache(const HubName& name) {
  const std::string root = hub_cache_folder(), text = name.text();
  const std::string snapshot = root.empty() ? "" : HubCache(root, name).find();
  if (snapshot.empty())
    fail(ErrorCode::kBadInput,
         "no model folder {}, and no such model in the cache of Hugging Face ({}): `dsv4 pull {}` "
         "fetches it",
         text, root.empty() ? "set HF_HUB_CACHE" : root, text);
  if (const std::string missing = missing_in(snapshot); !missing.empty())
    fail(ErrorCode::kBadInput, "{} is not complete: {} lacks {}: `dsv4 pull {}` fetches the rest",
         text, snapshot, missing, text);
  print_notice(fmt::format("note: {} is in the cache of Hugging Face: {}", text, snapshot));
  return snapshot;
}

std::optional<HubName> hub_name_to_fetch(const std::string& model) {
  std::error_code error;
  if (std::filesystem::exists(model, error) || hub_is_offline()) return std::nullopt;
  const std::optional<HubName> name = parse_hub_name(model);
  if (!name) return std::nullopt;
  const std::string root = hub_cache_folder();
  const std::string snapshot = root.empty() ? "" : HubCache(root, *name).find();
  return snapshot.empty() || !missing_in(snapshot).empty() ? name : std::nullopt;
}

HubPolicy hub_policy() {
  HubPolicy policy{.endpoint = hub_endpoint(), .token = hub_token()};
  try {
    origin_of(policy.endpoint);
  } catch (const Error& error) {
    fail(ErrorCode::kBadInput, "HF_ENDPOINT: {}", error.what());
  }
  return policy;
}

void print_notice(const std::string& line) {
  const char* clear = isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "";
  std::fprintf(stderr, "%sdsv4: %s\n", clear, printable(line, kMaxPath).c_str());
}

}  // namespace dsv4::apps
