#include "dsv4/server/routes.h"

namespace dsv4 {
namespace {

constexpr std::string_view kArgument = "{}";

// What stands in the place of {} in `pattern`; nothing where the path is another.
std::optional<std::string> argument_of(std::string_view pattern, std::string_view path) {
  const size_t at = pattern.find(kArgument);
  if (at == pattern.npos) return std::nullopt;
  const std::string_view before = pattern.substr(0, at),
                         after = pattern.substr(at + kArgument.size());
  if (path.size() <= before.size() + after.size()) return std::nullopt;
  if (!path.starts_with(before) || !path.ends_with(after)) return std::nullopt;
  path.remove_prefix(before.size());
  path.remove_suffix(after.size());
  return percent_decoded(path);
}

}  // namespace

bool Route::takes(std::string_view request_method) const {
  return method.empty() || request_method == method ||
         (request_method == "HEAD" && method == "GET");
}

bool Route::served_at(bool admin_port) const {
  return needs.port == Port::kBoth || (needs.port == Port::kOperators) == admin_port;
}

Api api_of_path(std::string_view path) {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  if (path.starts_with("/api/")) return Api::kOllamaChat;
  return path == "/messages" || path.starts_with("/messages/") ? Api::kMessages : Api::kChat;
}

std::optional<FoundRoute> find_route(std::span<const Route> routes, std::string_view path) {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  for (const Route& route : routes) {
    if (route.path == path) return FoundRoute{&route, ""};
  }
  for (const Route& route : routes) {
    if (auto argument = argument_of(route.path, path))
      return FoundRoute{&route, std::move(*argument)};
  }
  return std::nullopt;
}

}  // namespace dsv4
