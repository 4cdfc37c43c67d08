#include "dsv4/server/host_rule.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>

namespace dsv4 {
namespace {

constexpr std::string_view kWildcard = "*";

bool is_private(const std::string& name) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, name.c_str(), &v4) == 1) {
    const uint32_t address = ntohl(v4.s_addr);
    return address >> 24 == 10 || address >> 20 == (172 << 4 | 1) ||
           address >> 16 == (192 << 8 | 168);
  }
  return inet_pton(AF_INET6, name.c_str(), &v6) == 1 && (v6.s6_addr[0] & 0xfe) == 0xfc;
}

bool is_below(std::string_view name, std::string_view suffix_with_dot) {
  return name.size() > suffix_with_dot.size() && name.ends_with(suffix_with_dot);
}

bool matches(std::string_view name, std::string_view entry) {
  if (entry == kWildcard || name == entry) return true;
  if (entry.starts_with("*.")) return is_below(name, entry.substr(1));
  return entry.starts_with(".") && (name == entry.substr(1) || is_below(name, entry));
}

std::string machine_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? lower_case(name) : "";
}

}  // namespace

bool is_loopback(const std::string& host) {
  if (host.find('\0') != host.npos) return false;  // inet_pton() reads up to it
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

std::optional<std::string> name_of_host(std::string_view host) {
  const bool brackets = host.starts_with("[");
  const size_t end = brackets ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == host.npos) return std::nullopt;
  std::string name = lower_case(host.substr(brackets, end - brackets));
  const std::string_view rest = host.substr(end + brackets);
  const bool is_v6 = name.find(':') != name.npos;
  const bool port =
      rest.empty() || (rest[0] == ':' && rest.find_first_not_of("0123456789", 1) == rest.npos);
  const bool bytes = name.find('\0') == name.npos;  // where functions of C would end the name
  if (!port || !bytes || brackets != is_v6) return std::nullopt;
  if (name.ends_with(".")) name.pop_back();
  if (name.empty()) return std::nullopt;
  return name;
}

std::string allowed_host_error(std::string_view entry) {
  if (entry == kWildcard) return "";
  std::string_view name = entry.substr(entry.starts_with("*."));
  name = name.substr(name.starts_with("."));
  const bool v6 = name.starts_with("[") && name.ends_with("]");
  if (name.empty() || name.find_first_of("*/?#@, ") != name.npos ||
      (!v6 && name.find(':') != name.npos))
    return "want a name without a scheme and a port, as chat.example.com, .example.com or "
           "*.example.com, or *";
  return name_of_host(name) ? "" : "malformed name";
}

HostRule::HostRule(Options options) : options_(std::move(options)), machine_(machine_name()) {
  for (std::string& entry : options_.allowed_hosts) {
    if (entry.starts_with("[")) entry = name_of_host(entry).value_or(entry);
    entry = lower_case(entry);
  }
}

bool HostRule::host_allowed(std::string_view host) const {
  if (options_.keys || host.empty()) return true;
  const auto name = name_of_host(host);
  if (!name) return false;
  if (is_loopback(*name) || is_private(*name) || *name == machine_) return true;
  if (std::ranges::any_of(options_.allowed_hosts,
                          [&](const std::string& entry) { return matches(*name, entry); }))
    return true;
  constexpr std::string_view kLocal[] = {".localhost", ".local", ".internal"};
  return std::ranges::any_of(kLocal, [&](std::string_view end) { return is_below(*name, end); });
}

// A proxy may drop the port of the Host header, or send the name that it has for the server.
bool HostRule::named_by_proxy(const HttpRequest& head, std::string_view origin_host) const {
  const auto origin = name_of_host(origin_host);
  if (!head.proxied || !origin) return false;
  if (name_of_host(head.header("host")) == origin) return true;
  const std::string_view forwarded = head.header("x-forwarded-host");
  return name_of_host(forwarded.substr(0, forwarded.find(','))) == origin;
}

HostRule::Origin HostRule::origin_of(const HttpRequest& head) const {
  const std::string_view origin = head.header("origin");
  if (origin.empty()) return Origin::kNone;
  if (std::ranges::find(options_.cors_origins, origin) != options_.cors_origins.end())
    return Origin::kListed;
  const size_t scheme = origin.find("://");
  if (scheme == origin.npos) return Origin::kOther;
  const std::string_view host = origin.substr(scheme + 3);
  const auto name = name_of_host(host);
  const bool whole_name =
      name && std::ranges::any_of(options_.allowed_hosts, [&](const std::string& entry) {
        return entry == *name && entry.find_first_of("*.") != 0;
      });
  const bool own = host == head.header("host") || whole_name || named_by_proxy(head, host);
  return own ? Origin::kOwn : Origin::kOther;
}

}  // namespace dsv4
