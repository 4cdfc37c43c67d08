// Who shares a queue with whom, and how much of it one client may fill.
//
// A client is an API key, or where there are no keys an address. A queue keeps its last quarter for
// clients that hold less than a quarter of it, so that one client cannot fill it for all others.
// Clients that cannot be distinguished, those of this machine or with the only key, have the empty
// name and may fill it.

#pragma once

#include <cstddef>
#include <string>

namespace dsv4 {

// The client at an address: itself, or of IPv6 its /64, which one subscriber has whole; empty on
// loopback.
std::string client_at(const std::string& address);

// Whether a queue of `most` places, of which `taken` are taken, has `more` for a client that holds
// `own` of them.
bool has_room(const std::string& client, size_t most, size_t taken, size_t own, size_t more);

}  // namespace dsv4
