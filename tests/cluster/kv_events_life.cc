// kv_events_life ENDPOINT REPLAY EVENTS SEED FOLDER: a random life of a cache, with its events
// published, for tools/serve/check_kv_events.py. Prints the endpoints, lives until so many events
// are out, prints what the cache then holds, computed from its own texts, and answers replays until
// its standard input ends.

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "apps/kv_events.h"
#include "dsv4/base/rng.h"
#include "dsv4/cache/prefix_index.h"
#include "dsv4/cache/unit_store.h"

namespace dsv4 {
namespace {

constexpr int64_t kStep = 128, kBlockBytes = 4096;

void print(const nlohmann::json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

// Few different steps, so that texts share beginnings.
std::vector<int32_t> random_text(Rng& rng) {
  std::vector<int32_t> ids;
  for (uint64_t steps = 1 + rng.bits() % 8; steps > 0; --steps) {
    const auto first = static_cast<int32_t>(rng.bits() % 3) * 1000;
    for (int32_t j = 0; j < kStep; ++j) ids.push_back(first + j);
  }
  return ids;
}

void one_change(Rng& rng, const Digest& model, PrefixIndex& index, UnitStore& units,
                std::set<int>& checkpoints, int number) {
  const std::vector<int32_t> ids = random_text(rng);
  const std::string salt = rng.bits() % 8 == 0 ? "somebody's" : "";
  PrefixChain chain(model, salt, kStep);
  chain.extend(ids);
  switch (rng.bits() % 6) {
    case 0:
    case 1:
      if (!index.insert(salt, ids, number)) checkpoints.insert(number);
      break;
    case 2:
      if (checkpoints.size() < 10) break;
      index.erase(*checkpoints.begin());
      checkpoints.erase(checkpoints.begin());
      break;
    case 3:
    case 4:
      units.save(chain, ids, [](int64_t, const UnitPieces&) {});
      break;
    default:
      if (const auto lease = units.find(chain, ids, 0)) lease->wait_for(std::chrono::seconds(20));
      if (rng.bits() % 12 == 0) units.drop_ram();
      if (rng.bits() % 40 == 0) units.drop_all();
  }
}

int live(const std::vector<std::string>& arguments) {
  const int64_t wanted = std::stoll(arguments[2]);
  Rng rng(std::stoull(arguments[3]));
  apps::KvEventPublisher publisher({.endpoint = arguments[0], .replay_endpoint = arguments[1]});
  print({{"endpoint", publisher.endpoint()}, {"replay", publisher.replay_endpoint()}});
  const BlockEvents publish = [&](BlockEvent event) { publisher.add(std::move(event)); };
  const Digest model = digest_of("model");
  PrefixIndex index(kStep);
  index.publish(publish, model);
  UnitStoreOptions options{.ram_bytes = 60 * kBlockBytes,
                           .folder = arguments[4],
                           .disk_bytes = 90 * kBlockBytes,
                           .block_events = publish};
  UnitStore units(options, {.step = kStep, .block_bytes = kBlockBytes, .checkpoint_bytes = 64},
                  model, host_memory());
  std::set<int> checkpoints;
  for (int number = 0; publisher.counts().events < wanted; ++number) {
    one_change(rng, model, index, units, checkpoints, number);
    std::this_thread::sleep_for(std::chrono::microseconds(500));  // or all would be few batches
    if (number % 200 == 199) {  // as the server's route that drops the cache
      for (const int checkpoint : std::exchange(checkpoints, {})) index.erase(checkpoint);
      units.drop_all();
      publish({.kind = BlockEvent::Kind::kCleared});
    }
  }
  units.flush();
  print({{"events", publisher.counts().events},
         {"GPU", index.blocks(model)},
         {"CPU", units.blocks(CacheTier::kRam)},
         {"DISK", units.blocks(CacheTier::kDisk)}});
  while (std::getchar() != EOF) {
  }
  return 0;
}

}  // namespace
}  // namespace dsv4

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: kv_events_life ENDPOINT REPLAY EVENTS SEED FOLDER\n");
    return 2;
  }
  return dsv4::live({argv + 1, argv + argc});
}
