#include "apps/rank_process.h"

#include <charconv>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <utility>

#include "apps/commands.h"
#include "apps/version.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/fingerprint.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/plan/synthetic_tensors.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#endif

namespace dsv4::apps {
namespace {

std::chrono::seconds time_to_meet() {
  const std::string text = env("DSV4_RANKS_WAIT_S");
  if (text.empty()) return std::chrono::seconds(60);
  int seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || stop != end || seconds < 1 || seconds > 86400)
    fail(ErrorCode::kBadInput, "DSV4_RANKS_WAIT_S is '{}': want seconds from 1 to {}",
         quotable(text), 86400);
  return std::chrono::seconds(seconds);
}

#if DSV4_CUDA
// A launcher that shows every process the same GPU would make them take turns without a word.
// listed: whoever wrote the list wants it so; the ranks still meet here, in case that the words of
// others differ.
void refuse_shared_gpu(RankProcesses& group, const Device& device, bool listed) {
  char own[32] = {};
  cuda_check(cudaDeviceGetPCIBusId(own, sizeof own, device.info().ordinal),
             "cudaDeviceGetPCIBusId");
  const std::vector<Bytes> all =
      group.swap(MessageWriter().text(own).bytes(), "the GPUs of the other ranks");
  std::map<std::string, size_t> rank_of;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string gpu = MessageReader(all[rank]).text();
    const auto [first, is_first] = rank_of.emplace(gpu, rank);
    if (!is_first && !listed)
      fail(ErrorCode::kBadInput,
           "ranks {} and {} are on the GPU {}: show each process a GPU of its own, or for tests "
           "give a list (--gpus processes:0,0)",
           first->second, rank, gpu);
  }
}
#endif

}  // namespace

std::shared_ptr<RankProcesses> meet_ranks(const LaunchedRank& self, const std::string& what,
                                          [[maybe_unused]] const std::string& device,
                                          const Devices& devices, ExpertsPlacement placement,
                                          DrafterKind drafter) {
  const Device* const own = devices.front().get();
  auto group = std::make_shared<RankProcesses>(
      self, rank_identity(version_text(), what, own, placement, drafter), time_to_meet());
#if DSV4_CUDA
  if (own != nullptr) refuse_shared_gpu(*group, *own, device.find(':') != device.npos);
#endif
  return group;
}

namespace {

// A model of some kind.
struct RanksOf {
  std::function<Model(ShardId id, bool alone)> make;  // alone: without the others of its world
  std::string identity;                               // what ranks that are processes compare
  FollowedWork work;
};

Model join_ranks(RanksOf model, const std::string& device, const Devices& devices) {
#if DSV4_CUDA
  model.work.fill = [](const Model& rank, std::span<const LayerCache> caches, uint64_t seed) {
    fill_caches(*rank.device(), caches, seed);
  };
#endif
  const auto self = rank_of_process(device);
  if (!self || self->id.whole()) return model.make({0, num_ranks(device)}, false);
  Model rank = model.make(self->id, true);
  const auto& drafter = rank.weights().drafter;
  rank.join(meet_ranks(*self, model.identity, device, devices, rank.spec().placement(),
                       drafter ? drafter->kind : DrafterKind::kNone));
  if (self->id.rank == 0) return rank;
  // Launchers send these to all ranks. Rank 0 finishes what it has begun and then ends the others.
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_IGN);
  follow_rank_0(rank, model.work);
  throw ExitStatus{0};
}

}  // namespace

bool follows(const std::string& device) {
  const auto self = rank_of_process(device);
  return self && self->id.rank != 0;
}

Model load_ranks(const std::shared_ptr<const ModelSpec>& spec, const std::string& device,
                 const Devices& devices, DrafterKind drafter) {
  RanksOf model;
  model.make = [&](ShardId id, bool alone) {
    return alone ? Model(spec, id, drafter) : Model::of_ranks(spec, id.world, drafter);
  };
  if (rank_of_process(device)) model.identity = model_identity(spec->checkpoint().folder());
  model.work.place = [&](Model& rank, int64_t cache_bytes, const Context& steps) {
    move_to_devices(
        rank, devices, [](int64_t, int64_t) {}, cache_bytes, steps);
  };
  return join_ranks(std::move(model), device, devices);
}

Model synthetic_ranks(const SyntheticOptions& options, DrafterKind drafter,
                      const std::string& device, const Devices& devices,
                      ExpertsPlacement placement) {
  RanksOf model;
  model.make = [&](ShardId id, bool alone) {
    return make_synthetic_model(options, drafter, id, alone, placement);
  };
  model.identity =
      fmt::format("{} {} {} {} {} {} {}", options.synthetic, options.experts, options.dense,
                  options.recipe, options.layers, options.routing, options.seed);
#if DSV4_CUDA
  model.work.place = [&](Model& rank, int64_t cache_bytes, const Context& steps) {
    make_on_devices(rank, devices, options.seed, cache_bytes, steps);
  };
#endif
  return join_ranks(std::move(model), device, devices);
}

void refuse_processes(const std::string& device, const char* command) {
  if (rank_of_process(device))
    fail(ErrorCode::kUnsupported,
         "{} does not run over processes: give --gpus N, whose ranks are threads", command);
}

}  // namespace dsv4::apps
