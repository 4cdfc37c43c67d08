// Which names a client may call this server by, and pages of which origins may use it. Both are
// checks against web pages, whose requests carry the page's own name: as Host where the attacker's
// DNS server resolves that name to this machine (DNS rebinding), as Origin where the page calls
// another server than its own.
//
//   Host     passes where API keys are wanted, because no such page has one; otherwise
//            a name of loopback, localhost and names below it
//            names below .local and .internal, which no public DNS server gives
//            the name of this machine, and addresses of private networks
//            what --allowed-host names
//   Origin   of the server itself: as the Host header says; behind a trusted proxy also as
//            X-Forwarded-Host says, and without its port; or a whole name of --allowed-host
//            listed in --cors-origin
//            any other passes where API keys are wanted, but its page may not read the answer
//
// A server that listens on another address than loopback wants keys.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/server/http.h"

namespace dsv4 {

// "localhost", or an address of loopback.
bool is_loopback(const std::string& host);

// The name in a Host header, "name:port", "[v6]:port" or without the port, in lower case and
// without a dot at its end; nothing where it is malformed.
std::optional<std::string> name_of_host(std::string_view host);

// What is wrong with an entry of HostRule::Options::allowed_hosts; empty: nothing.
std::string allowed_host_error(std::string_view entry);

class HostRule {
 public:
  struct Options {
    bool keys = false;  // API keys are wanted
    // "chat.example.com": this name; ".example.com": this name and those below it;
    // "*.example.com": those below it; "*": every name.
    std::vector<std::string> allowed_hosts;
    std::vector<std::string> cors_origins;  // "https://app.example"
  };
  enum class Origin {
    kNone,    // no page, or an old browser's
    kOwn,     // the server's own page
    kListed,  // may use the server and read its answers
    kOther
  };

  HostRule() = default;
  explicit HostRule(Options options);

  bool host_allowed(std::string_view host) const;
  Origin origin_of(const HttpRequest& head) const;
  bool origin_allowed(const HttpRequest& head) const {
    return options_.keys || origin_of(head) != Origin::kOther;
  }

 private:
  bool named_by_proxy(const HttpRequest& head, std::string_view origin_host) const;

  Options options_;
  std::string machine_;  // its name
};

}  // namespace dsv4
