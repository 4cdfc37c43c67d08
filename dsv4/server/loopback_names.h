// Which hosts are this machine. A name that only looks like an address, as 127.evil.example, may
// resolve to anything, and that is how a web page reaches a server on loopback (DNS rebinding).

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

// "localhost", or an address of loopback.
bool is_loopback(const std::string& host);

// Of a Host header: a name or an IPv4 address, or an IPv6 address in brackets, and perhaps a port.
bool names_loopback(std::string_view host);

}  // namespace dsv4
