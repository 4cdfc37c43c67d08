// A route of the server: which requests it takes, what they need before their body is read, and the
// member of Service that answers them. The table of all routes is Service::routes().

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/server/http.h"
#include "dsv4/server/settings.h"

namespace dsv4 {

class Service;

// A request as the handler of its route gets it.
struct RoutedRequest {
  std::shared_ptr<Exchange> exchange;
  Api api = Api::kChat;
  std::string argument;  // what stands in the place of {}, percent-decoded
};

struct Route {
  // Returns the answer, or nothing when the handler answers later through the exchange. A
  // RequestError that it throws becomes the answer.
  using Handler = std::optional<HttpResponse> (Service::*)(const RoutedRequest&);
  enum class Key : uint8_t { kNone, kAny, kAdmin };  // which key opens it, where there are keys
  // With an admin port, each route is served at one of the two ports, or at both.
  enum class Port : uint8_t { kClients, kOperators, kBoth };
  struct Needs {
    Key key = Key::kAny;
    Port port = Port::kClients;
    bool model = false;  // 503 while it is loaded
  };

  std::string_view method;  // GET or POST; empty: any
  std::string_view path;    // without /v1; {} stands for one argument that is not empty
  Handler handler = nullptr;
  Needs needs;
  Api api = Api::kChat;  // whose error bodies it answers with

  bool takes(std::string_view request_method) const;  // HEAD too, where it takes GET
  std::string_view allow() const {
    return method.empty() ? "GET, POST, DELETE" : method == "GET" ? "GET, HEAD" : method;
  }
  bool served_at(bool admin_port) const;
};

// Whose error bodies a path without a route answers with.
Api api_of_path(std::string_view path);

struct FoundRoute {
  const Route* route = nullptr;
  std::string argument;
};

// By path, with or without /v1; nothing where there is none. A path without {} comes first.
std::optional<FoundRoute> find_route(std::span<const Route> routes, std::string_view path);

}  // namespace dsv4
