#include "apps/rank_process.h"

#include <charconv>
#include <chrono>
#include <csignal>

#include "apps/commands.h"
#include "apps/version.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/fingerprint.h"
#include "dsv4/engine/rank_messages.h"

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

}  // namespace

bool follows(const std::string& device) {
  const auto self = rank_of_process(device);
  return self && self->id.rank != 0;
}

Model load_ranks(const std::shared_ptr<const ModelSpec>& spec, const std::string& device) {
  const auto self = rank_of_process(device);
  if (!self || self->id.whole()) return Model::of_ranks(spec, num_ranks(device));
  Model model(spec, self->id);
  model.join(
      std::make_shared<RankProcesses>(*self, rank_identity(version_text(), model), time_to_meet()));
  if (self->id.rank == 0) return model;
  // Launchers send these to all ranks. Rank 0 finishes what it has begun and then ends the others.
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_IGN);
  follow_rank_0(model);
  throw ExitStatus{0};
}

void refuse_processes(const std::string& device, const char* command) {
  if (rank_of_process(device))
    fail(ErrorCode::kUnsupported,
         "{} does not run over processes: give --gpus N, whose ranks are threads", command);
}

}  // namespace dsv4::apps
