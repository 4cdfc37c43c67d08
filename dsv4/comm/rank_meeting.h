// How ranks meet that are processes of one host (rank_processes.h): rank 0 listens, the others say
// what they are, and rank 0 welcomes all of them, or sends all of them the line with which they
// end.
//
// Any process of this user may connect to rank 0. One that says nothing, or something that is no
// message, is left alone, and the ranks go on meeting; a rank that is slow to say what it is has as
// much time as one that is slow to come.

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "dsv4/comm/launched_rank.h"
#include "dsv4/comm/rank_socket.h"

namespace dsv4 {

// What has to be equal on all ranks for their bits to be. Texts that a line can show.
struct RankIdentity {
  std::string program, model, processor;
};

// The connections of this rank, [world]: on rank 0 those to the others, on the others that to rank
// 0. Throws kUnsupported on every rank, with one line, when some do not come within `wait` or are
// not equal to rank 0. limit: how long rank 0 is waited for after that
std::vector<RankSocket> connect_ranks(const LaunchedRank& self, const RankIdentity& identity,
                                      std::chrono::milliseconds wait,
                                      std::chrono::milliseconds limit);

// What a rank says first.
struct RankHello {
  uint32_t protocol = 0;
  ShardId id;
  RankIdentity identity;
};
Bytes put_hello(ShardId id, const RankIdentity& identity);
// What follows the program is read only where protocol and program are the own ones. Throws
// kBadInput for bytes that are no hello.
RankHello get_hello(const Bytes& bytes, const RankIdentity& own);
// Why the ranks cannot be one group, as rank `own` of them says it; empty: they can.
std::string difference(const RankHello& hello, ShardId own, const RankIdentity& identity);

}  // namespace dsv4
