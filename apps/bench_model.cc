#include "apps/bench_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>

#include "apps/common.h"
#include "apps/json_report.h"
#include "apps/rank_process.h"
#include "apps/step_trace.h"
#include "apps/threads.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/engine/workspace.h"
#include "dsv4/plan/synthetic.h"
#if DSV4_CUDA
#include "dsv4/comm/device_ranks.h"
#endif

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t largest_cache(const Model& model, Numerics numerics,
                      const std::vector<CacheLimits>& caches) {
  int64_t bytes = 0;
  for (const CacheLimits& limits : caches)
    bytes = std::max(bytes, plan_cache(model.config(), numerics, limits).plan.bytes());
  return bytes;
}

// "0/2": rank 0 of 2
ShardId parse_shard(const std::string& text) {
  ShardId id;
  const char* const end = text.data() + text.size();
  const auto [slash, first] = std::from_chars(text.data(), end, id.rank);
  if (first == std::errc() && slash != end && *slash == '/') {
    const auto [stop, error] = std::from_chars(slash + 1, end, id.world);
    if (error == std::errc() && stop == end && 0 <= id.rank && id.rank < id.world && id.world <= 8)
      return id;
  }
  fail(ErrorCode::kBadInput, "--shard {}: want R/N, rank R of N ranks, N up to 8", text);
}

// What a rank on a GPU has beside its part of the model: buffers for values of others, and what
// CUDA keeps for a GPU that another one reaches, as two H200 show it.
int64_t exchange_bytes([[maybe_unused]] int world) {
#if DSV4_CUDA
  constexpr int64_t kReachedBytes = int64_t{62} << 20;
  if (world > 1) return 2 * kExchangeWindowBytes + kReachedBytes;
#endif
  return 0;
}

// No step wants more of anything.
CacheLimits largest_limits(const std::vector<CacheLimits>& caches) {
  CacheLimits most;
  for (const CacheLimits& limits : caches) {
    most.max_tokens = std::max(most.max_tokens, limits.max_tokens);
    most.max_sequences = std::max(most.max_sequences, limits.max_sequences);
    most.max_batch_tokens = std::max(most.max_batch_tokens, limits.max_batch_tokens);
    most.max_logits_rows = std::max(most.max_logits_rows, limits.logits_rows());
    most.max_drafts = std::max(most.max_drafts, limits.max_drafts);
    if (limits.drafter != DrafterKind::kNone) most.drafter = limits.drafter;
    most.draft_head = most.draft_head || limits.draft_head;
  }
  return most;
}

}  // namespace

void add_bench_options(CLI::App& command, BenchOptions& options) {
  command.add_option("model", options.model, "model folder, ORG/NAME, or demo");
  add_synthetic_options(command, options);
  command.add_option("--seed", options.seed, "seed of random weights and prompts")
      ->check(seed_number())
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--shard", [&options](const std::string& text) { options.shard = parse_shard(text); },
          "synthetic: the step of rank R of N alone, on one GPU; copies of its own values stand "
          "for "
          "exchanges")
      ->option_text("R/N");
  add_deterministic(command, options.deterministic);
  add_choices(command, options.choices);
  add_expert_options(command, options.outside);
  command
      .add_flag("--share-copies", options.share_copies,
                "synthetic, with --experts-memory: experts for which host memory has no room share "
                "the bytes of others; times are those of a machine with more memory")
      ->needs(command.get_option("--experts-memory"), command.get_option("--synthetic"));
  command.add_flag("--ops", options.ops, "also time every op, and on a device every kernel");
  command.add_flag("--json", options.json, "print one JSON object");
  add_numerics(command, options.numerics);
  add_device(command, options.device);
  add_placement(command, options.placement);
  add_threads(command);
}

BenchModel::BenchModel(const BenchOptions& options, const std::vector<CacheLimits>& caches)
    : options_(options) {
  check_synthetic_options(options, options.model, options.device, "bench");
  if (options.shard && (options.synthetic.empty() || num_ranks(options.device) > 1))
    fail(ErrorCode::kBadInput, "--shard is a rank of a --synthetic model on one GPU");
  auto begin = Clock::now();
  const auto phase = [&](const char* name) {
    phases_[name] = seconds_since(begin);
    begin = Clock::now();
  };
  check_expert_options(options.outside, options.device, options.placement);
  const Devices devices = open_devices(options.device);
  Device* const first = devices.front().get();
  probe_ = make_probe(first);
  free_before_ = probe_->free_bytes();
  phase("open_device");
  if (!follows(options.device)) roofs_ = probe_->measure_roofs();
  phase("measure_roofs");
  if (options.synthetic.empty()) {
    const std::string folder = find_model(options.model);
    model_.emplace(load_ranks(ModelSpec::load(folder, options.placement), options.device, devices,
                              options.drafter));
    codebooks_ = codebooks_of(*model_);
    place_model(*model_, devices, largest_cache(*model_, options.numerics, caches), context(),
                expert_memory(options.outside, model_->config(), largest_limits(caches)));
    phase("load_weights");
    return;
  }
  model_.emplace(
      options.shard
          ? make_synthetic_model(options, options.drafter, *options.shard, true, options.placement)
          : synthetic_ranks(options, options.drafter, options.device, devices, options.placement));
  codebooks_ = codebooks_of(*model_);
  phase("list_tensors");
#if DSV4_CUDA
  std::optional<ExpertMemory> outside =
      expert_memory(options.outside, model_->config(), largest_limits(caches));
  if (outside) outside->share_copies = options.share_copies;
  const int64_t cache_bytes = largest_cache(*model_, options.numerics, caches);
  place_others(*model_, cache_bytes, context());
  make_on_devices(*model_, devices, options.seed, cache_bytes, context(),
                  outside ? &*outside : nullptr);
#endif
  phase("make_weights");
}

Context BenchModel::context() const {
  return {.numerics = options_.numerics,
          .need_batch_invariant = options_.deterministic,
          .choices = options_.choices};
}

Json BenchModel::header() const {
  const ModelConfig& config = model_->config();
  return {{"model", options_.model.empty() ? model_->checkpoint().folder() : options_.model},
          {"experts", options_.experts},
          {"dense", options_.dense},
          {"ranks", model_->id().world},
          {"shard", options_.shard
                        ? Json(fmt::format("{}/{}", options_.shard->rank, options_.shard->world))
                        : Json()},
          {"experts_placement", name(options_.placement)},
          {"codebooks", codebooks_},
          {"layers", config.num_layers},
          {"numerics", name(options_.numerics)},
          {"device", probe_->name()},
          {"driver", probe_->driver()},
          {"device_bytes", probe_->total_bytes()},
          {"copy_bytes_per_s", roofs_.copy_bytes_per_s},
          {"matrix_flops_per_s", roofs_.matrix_flops_per_s},
          {"seconds", phases_}};
}

Json BenchModel::memory(const CacheLimits& limits) const {
  if (model_->device() == nullptr) return nullptr;
  const ModelConfig& config = model_->config();
  const int64_t weights = model_->weight_bytes();
  const int64_t cache = plan_cache(config, options_.numerics, limits).plan.bytes();
  const int64_t work =
      plan_workspace(*model_, {.numerics = options_.numerics, .device = model_->device()}, limits,
                     0)
          .total();
  const ExpertStore* const store = model_->expert_store();
  const int64_t places = store == nullptr ? 0 : store->places().gpu_bytes();
  const int64_t exchange = options_.shard ? 0 : exchange_bytes(model_->id().world);
  const int64_t planned = weights + places + cache + work + exchange,
                taken = free_before_ - probe_->free_bytes();
  return {{"weights_bytes", weights},
          {"expert_places_bytes", places},
          {"host_experts_bytes", store == nullptr ? 0 : store->places().host_bytes()},
          {"cache_bytes", cache},
          {"workspace_bytes", work},
          {"exchange_bytes", exchange},
          {"planned_bytes", planned},
          {"measured_bytes", taken}};
}

Json BenchModel::kernel_table() {
  std::vector<std::pair<std::string, KernelTotal>> rows;
  for (const auto& row : probe_->take_times()) rows.push_back(row);
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  Json table = Json::array();
  for (const auto& [kernel, total] : rows)
    table.push_back(
        {{"kernel", kernel}, {"launches", total.launches}, {"us", 1e6 * total.seconds}});
  return table;
}

Json BenchModel::save_trace(const std::string& file, Json report) {
  report["device"] = probe_->name();
  report.update(trace_report(probe_->stop_trace()));
  std::ofstream out(file);
  out << dump(report) << '\n';
  if (!out.flush()) fail(ErrorCode::kBadInput, "--trace {}: cannot write the file", file);
  report.erase("kernels");
  return report;
}

// The share is that of the larger of the two floors: bytes at the copy rate, flops at the matrix
// rate; null on the host, whose rates are not measured.
Json BenchModel::op_table(OpProfile& profile) const {
  std::vector<std::pair<std::string, OpTotal>> rows;
  for (const auto& row : profile.take()) rows.push_back(row);
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  Json table = Json::array();
  for (const auto& [op, total] : rows) {
    Json row = {{"op", op},
                {"calls", total.calls},
                {"us", 1e6 * total.seconds},
                {"bytes", total.cost.bytes},
                {"flops", total.cost.flops}};
    if (roofs_.copy_bytes_per_s > 0) {
      const double floor = std::max(total.cost.bytes / roofs_.copy_bytes_per_s,
                                    total.cost.flops / roofs_.matrix_flops_per_s);
      row["share_of_roof"] = floor / total.seconds;
    }
    table.push_back(std::move(row));
  }
  return table;
}

std::vector<int32_t> random_tokens(const Model& model, int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(model.config().vocab_size));
  return ids;
}

std::vector<int64_t> parse_numbers(const char* what, const std::string& text, int64_t high,
                                   int64_t low) {
  std::vector<int64_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    const bool good = error == std::errc() && number >= low && number <= high;
    if (!good || (stop != end && *stop != ','))
      fail(ErrorCode::kBadInput, "{} {}: want numbers from {} to {} separated by commas", what,
           quotable(text), low, high);
    numbers.push_back(number);
    if (stop == end) return numbers;
    at = stop + 1;
  }
}

}  // namespace dsv4::apps
