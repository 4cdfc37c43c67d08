#include "dsv4/server/shares.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

#include "dsv4/server/host_rule.h"

namespace dsv4 {

std::string client_at(const std::string& address) {
  if (is_loopback(address)) return "";
  in6_addr v6{};
  if (inet_pton(AF_INET6, address.c_str(), &v6) != 1 || IN6_IS_ADDR_V4MAPPED(&v6)) return address;
  std::fill(std::begin(v6.s6_addr) + 8, std::end(v6.s6_addr), uint8_t{0});
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &v6, text, sizeof text);
  return fmt::format("{}/64", text);
}

bool has_room(const std::string& client, size_t most, size_t taken, size_t own, size_t more) {
  if (client.empty() || taken + more > most) return taken + more <= most;
  const size_t quarter = most / 4;
  return taken + more <= most - quarter || own + more <= quarter;
}

}  // namespace dsv4
