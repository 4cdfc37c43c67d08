// Who shares a queue with whom, and how much of it one client may fill.
//
// A client is an API key, or where there are no keys an address. A queue of `most` places keeps its
// last quarter for clients that hold less than a quarter of it, so that one client cannot fill it
// for all others.

#pragma once

#include <cstddef>
#include <string>

namespace dsv4 {

// The client at an address: itself, or of IPv6 its /64, which one subscriber has whole.
std::string client_at(const std::string& address);

// Whether `more` places are left for a client that holds `own` of the `taken` ones.
bool has_room(size_t most, size_t taken, size_t own, size_t more);

}  // namespace dsv4
