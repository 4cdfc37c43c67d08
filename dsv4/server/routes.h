// Paths of the server and what each needs, checked before a body is read.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dsv4/server/settings.h"

namespace dsv4 {

enum class Endpoint {
  kChat,
  kCompletions,
  kResponses,
  kMessages,
  kCountTokens,
  kModels,
  kModel,  // /v1/models/{id}
  kTokenize,
  kDetokenize,
  kRender,
  kHealth,
  kReady,
  kMetrics,
  kVersion,
  kPage,
  kRequests,
  kCache,
  kDropCache,
  kCancel,  // /v1/dsv4/requests/{id}/cancel
};

struct Route {
  Endpoint endpoint = Endpoint::kPage;
  std::string_view method;   // GET or POST
  bool open = false;         // without a key
  bool admin = false;        // needs an admin key, where there are keys
  bool needs_model = false;  // 503 while it is loaded
  Api api = Api::kChat;      // whose error bodies it answers with
  std::string argument;      // {id}

  // With an admin port, what operators ask for is served there and only there, and everything else
  // only at the other port, except what says that the process lives.
  bool served_at(bool admin_port) const;
};

// By path, with or without /v1; nothing where there is none.
std::optional<Route> find_route(std::string_view path);

}  // namespace dsv4
