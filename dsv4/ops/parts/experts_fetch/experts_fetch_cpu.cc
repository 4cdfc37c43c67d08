#include <cstring>
#include <vector>

#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"

namespace dsv4::experts_fetch_kernel::cpu {

namespace {

std::byte* memory_of(const ExpertsFetchArgs& args, int64_t place) {
  const int64_t kept = args.memory.dim(0);
  return place < kept ? args.memory.row<std::byte>(place)
                      : args.transient.row<std::byte>(place - kept);
}

}  // namespace

void run(const Context&, const ExpertsFetchArgs& args) {
  const LayerPlaces layer = layer_of(args);
  const auto bytes = static_cast<size_t>(args.memory.dim(1));
  std::vector<Move> moves(static_cast<size_t>(layer.experts));
  const Decision decision = decide(OneLane{}, layer, args.experts.as<int32_t>(),
                                   static_cast<int>(args.experts.numel()), moves.data());
  moves.resize(static_cast<size_t>(decision.moves));
  const auto* homes = args.homes.as<int64_t>();
  for (const auto& [expert, place] : moves)
    std::memcpy(memory_of(args, place), reinterpret_cast<const std::byte*>(homes[expert]), bytes);
  for (int e = 0; e < layer.experts; ++e)
    args.places.as<int64_t>()[e] =
        layer.place_of[e] == kHome ? homes[e]
                                   : reinterpret_cast<int64_t>(memory_of(args, layer.place_of[e]));
  if (!args.turn_of.empty()) {
    for (int e = 0; e < layer.experts; ++e)
      args.turn_of.as<int32_t>()[e] = layer.place_of[e] == kHome ? 1 : 0;
    for (const Move& move : moves) args.turn_of.as<int32_t>()[move.expert] = 1;
  }
  auto* counters = args.counters.as<int64_t>();
  counters[0] += decision.hits, counters[1] += decision.moves;
  counters[2] += decision.at_home, counters[3] += decision.impossible;
}

}  // namespace dsv4::experts_fetch_kernel::cpu
