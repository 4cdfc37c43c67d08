#include "dsv4/server/routes.h"

#include "dsv4/server/http.h"

namespace dsv4 {
namespace {

struct Entry {
  std::string_view path;  // without /v1
  Route route;
};

const Entry kRoutes[] = {
    {"/chat/completions", {Endpoint::kChat, "POST", false, false, true, Api::kChat, ""}},
    {"/completions", {Endpoint::kCompletions, "POST", false, false, true, Api::kCompletions, ""}},
    {"/responses", {Endpoint::kResponses, "POST", false, false, true, Api::kResponses, ""}},
    {"/messages", {Endpoint::kMessages, "POST", false, false, true, Api::kMessages, ""}},
    {"/messages/count_tokens",
     {Endpoint::kCountTokens, "POST", false, false, true, Api::kMessages, ""}},
    {"/models", {Endpoint::kModels, "GET", false, false, true, Api::kChat, ""}},
    {"/dsv4/tokenize", {Endpoint::kTokenize, "POST", false, false, true, Api::kChat, ""}},
    {"/tokenize", {Endpoint::kTokenize, "POST", false, false, true, Api::kChat, ""}},
    {"/dsv4/detokenize", {Endpoint::kDetokenize, "POST", false, false, true, Api::kChat, ""}},
    {"/detokenize", {Endpoint::kDetokenize, "POST", false, false, true, Api::kChat, ""}},
    {"/dsv4/render", {Endpoint::kRender, "POST", false, false, true, Api::kChat, ""}},
    {"/dsv4/requests", {Endpoint::kRequests, "GET", false, true, false, Api::kChat, ""}},
    {"/dsv4/cache", {Endpoint::kCache, "GET", false, true, false, Api::kChat, ""}},
    {"/dsv4/cache/drop", {Endpoint::kDropCache, "POST", false, true, false, Api::kChat, ""}},
    {"/health", {Endpoint::kHealth, "GET", true, false, false, Api::kChat, ""}},
    {"/ready", {Endpoint::kReady, "GET", true, false, false, Api::kChat, ""}},
    {"/metrics", {Endpoint::kMetrics, "GET", true, false, false, Api::kChat, ""}},
    {"/version", {Endpoint::kVersion, "GET", true, false, false, Api::kChat, ""}},
    {"/", {Endpoint::kPage, "GET", true, false, false, Api::kChat, ""}},
};

}  // namespace

bool Route::served_at(bool admin_port) const {
  switch (endpoint) {
    case Endpoint::kHealth:
    case Endpoint::kReady:
    case Endpoint::kVersion:
      return true;
    case Endpoint::kMetrics:
      return admin_port;
    default:
      return admin == admin_port;
  }
}

std::optional<Route> find_route(std::string_view path) {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  for (const Entry& entry : kRoutes) {
    if (entry.path == path) return entry.route;
  }
  constexpr std::string_view kModels = "/models/", kRequests = "/dsv4/requests/",
                             kCancel = "/cancel";
  Route route{.method = "GET", .needs_model = true};
  if (path.starts_with(kModels) && path.size() > kModels.size()) {
    // Names may hold slashes, as owner/name.
    const auto name = percent_decoded(path.substr(kModels.size()));
    if (!name) return std::nullopt;
    route.endpoint = Endpoint::kModel;
    route.argument = *name;
    return route;
  }
  if (path.starts_with(kRequests) && path.ends_with(kCancel) &&
      path.size() > kRequests.size() + kCancel.size()) {
    path.remove_prefix(kRequests.size());
    path.remove_suffix(kCancel.size());
    return Route{.endpoint = Endpoint::kCancel,
                 .method = "POST",
                 .admin = true,
                 .argument = std::string(path)};
  }
  return std::nullopt;
}

}  // namespace dsv4
