#include "dsv4/server/loopback_names.h"

#include <arpa/inet.h>

#include <algorithm>

namespace dsv4 {

bool is_loopback(const std::string& host) {
  if (host.find('\0') != host.npos) return false;  // inet_pton() reads up to it
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

bool names_loopback(std::string_view host) {
  const bool brackets = host.starts_with("[");
  const size_t end = brackets ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == host.npos) return false;
  const std::string name(host.substr(brackets, end - brackets));
  const std::string_view rest = host.substr(end + brackets);
  const bool is_v6 = name.find(':') != name.npos;
  const bool port =
      rest.empty() || (rest[0] == ':' && rest.find_first_not_of("0123456789", 1) == rest.npos);
  return port && brackets == is_v6 && is_loopback(name);
}

}  // namespace dsv4
