// dsv4 bench decode|prefill: tokens per second of a whole model, compared with the floor of its
// bytes and flops.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>

#include "apps/bench_model.h"
#include "apps/bench_rounds.h"
#include "apps/commands.h"
#include "apps/common.h"
#include "apps/expert_record.h"
#include "apps/expert_report.h"
#include "apps/json_report.h"
#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/chat/sha256.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/rank_memories.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/plan/step_cost.h"
#include "dsv4/plan/synthetic.h"
#if DSV4_CUDA
#include "dsv4/device/current_device.h"
#endif

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kWarmSteps = 4;  // the second one captures the graph
constexpr int64_t kMaxSequences = 1 << 20, kMaxTokens = 1 << 30;

struct DecodeOptions : BenchOptions {
  std::string batch = "1", context = "4096";
  int64_t steps = 32;
  std::string trace, counts_out;
  RoundOptions rounds;
};
struct PrefillOptions : BenchOptions {
  std::string tokens = "8192";
  int64_t chunk = 4096;
};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Rates as shares of the measured peaks; null where no peak was measured.
void add_shares(const StepCost& cost, double time, const Roofs& roofs, Json& row) {
  row["weight_bytes"] = cost.weight_bytes;
  row["cache_bytes"] = cost.cache_bytes;
  row["flops"] = cost.flops;
  if (roofs.copy_bytes_per_s > 0)
    row["share_of_memory_roof"] = cost.bytes() / time / roofs.copy_bytes_per_s;
  if (roofs.matrix_flops_per_s > 0)
    row["share_of_matrix_roof"] = cost.flops / time / roofs.matrix_flops_per_s;
}

// The experts that a step read, and its floor with them: all bytes at the measured peak.
void add_experts(const ExpertCount& count, const Roofs& roofs, Json& row) {
  const double bytes = row["weight_bytes"].get<double>() + row["cache_bytes"].get<double>() +
                       count.unexpected_bytes();
  if (count.layers() > 0) row["distinct_experts"] = count.distinct();
  row["read_bytes"] = bytes;
  if (roofs.copy_bytes_per_s > 0) row["floor_ms"] = 1e3 * bytes / roofs.copy_bytes_per_s;
}

// Opens sequences of `context` tokens without a prefill: their cache entries are random.
std::vector<SeqId> open_sequences(Executor& executor, int64_t batch, int64_t context) {
  std::vector<SeqId> sequences;
  for (int64_t i = 0; i < batch; ++i) {
    const SeqId seq = executor.cache().open();
    for (int64_t have = 0; have < context;) {
      const int64_t count = std::min(context - have, executor.limits().max_batch_tokens);
      if (!executor.cache().reserve(seq, count))
        fail(ErrorCode::kResource, "the cache has no room for {} tokens", context);
      executor.cache().commit(seq, count);
      have += count;
    }
    sequences.push_back(seq);
  }
  return sequences;
}

// Decodes sequences, one greedy token per sequence and step.
class Decoding {
 public:
  Decoding(Executor& executor, int64_t vocab, std::vector<SeqId> sequences,
           std::vector<int32_t> tokens)
      : executor_(executor),
        vocab_(vocab),
        sequences_(std::move(sequences)),
        tokens_(std::move(tokens)) {}

  void step() {
    executor_.start(work());
    SampleLists greedy(vocab_);
    for (size_t i = 0; i < tokens_.size(); ++i) greedy.add({.temperature = 0}, 0);
    const std::vector<Sampled> chosen = executor_.sample(greedy.rows());
    for (size_t i = 0; i < chosen.size(); ++i) tokens_[i] = chosen[i].id;
  }

  // The logits of one more step, [batch, V] f32.
  ConstTensorView logits() { return executor_.run(work()); }

 private:
  std::vector<Work> work() const {
    std::vector<Work> list;
    for (size_t i = 0; i < sequences_.size(); ++i)
      list.push_back({sequences_[i], {&tokens_[i], 1}, Work::Logits::kLast});
    return list;
  }

  Executor& executor_;
  const int64_t vocab_;
  std::vector<SeqId> sequences_;
  std::vector<int32_t> tokens_;
};

// Two programs whose steps have the same bits, from the same seed, report the same digest.
std::string digest_of(const ConstTensorView& logits) {
  const auto* bytes = reinterpret_cast<const char*>(logits.data);
  std::string text;
  for (const uint8_t byte : sha256({bytes, static_cast<size_t>(logits.bytes())}))
    text += fmt::format("{:02x}", byte);
  return text.substr(0, 16);
}

CacheLimits limits_of(const DecodeOptions& options, const RoundKind& kind, int64_t batch,
                      int64_t context) {
  const int64_t tokens = 1 + kind.drafts;  // of a sequence in a step
  return {.max_tokens = context + (kWarmSteps + options.steps + 2) * tokens,
          .max_sequences = static_cast<int>(batch),
          .max_batch_tokens = std::max<int64_t>(batch * tokens, 64),
          .max_logits_rows = kind.drafts > 0 ? batch * tokens : 0,
          .max_drafts = kind.drafts,
          .drafter = kind.drafter,
          .draft_head = kind.draft_head};
}
CacheLimits limits_of(const PrefillOptions& options, int64_t tokens) {
  return {.max_tokens = tokens,
          .max_sequences = 1,
          .max_batch_tokens = std::min(options.chunk, tokens)};
}

#if DSV4_CUDA
// On all ranks the same.
void fill_all_caches(const Model& model, Executor& executor, uint64_t seed) {
  if (model.device() == nullptr) return;
  fill_others(model, executor.layers(), seed);
  fill_caches(*model.device(), executor.layers(), seed);
  const auto* memories = dynamic_cast<const RankMemories*>(&executor.runner().memory());
  for (const auto& shard : model.others()) {
    const VisitDevice visit(*shard->device(), *model.device());
    fill_caches(*shard->device(), caches_of_rank(executor.layers(), *memories, shard->id().rank),
                seed);
  }
}
#endif

Json round_row(BenchModel& bench, const DecodeOptions& options, const RoundKind& kind,
               int64_t batch, int64_t context) {
  const Model& model = bench.model();
  const CacheLimits limits = limits_of(options, kind, batch, context);
  Executor executor(model, bench.context(), limits, bench.ranks());
#if DSV4_CUDA
  fill_all_caches(model, executor, options.seed);
#endif
  Rounds rounds(executor, kind, open_sequences(executor, batch, context),
                random_tokens(model, batch, options.seed), options.seed);
  const auto begin = Clock::now();
  for (int i = 0; i < kWarmSteps; ++i) rounds.step();
  const double warm = seconds_between(begin, Clock::now());
  const int64_t before = rounds.tokens();
  const ExpertStats before_steps = expert_stats(model);
  std::vector<double> times, drafts;
  for (int64_t i = 0; i < options.steps; ++i) {
    const auto from = Clock::now();
    rounds.step();
    times.push_back(seconds_between(from, Clock::now()));
    drafts.push_back(rounds.draft_seconds());
  }
  const double time = median(times);
  const double given =
      static_cast<double>(rounds.tokens() - before) / static_cast<double>(batch * options.steps);
  Json row = {{"batch", batch},
              {"context", context},
              {"draft_tokens", kind.drafts},
              {"draft_head", kind.draft_head ? "k4" : "same"},
              {"drafts_from", kind.drafter == DrafterKind::kNone ? "lookup" : name(kind.drafter)},
              {"accept", kind.chances},
              {"ms_per_round", 1e3 * time},
              {"draft_ms", 1e3 * median(drafts)},
              {"tokens_per_round", given},
              {"expected_tokens_per_round", kind.expected_tokens()},
              {"tokens_per_second", static_cast<double>(batch) * kind.expected_tokens() / time},
              {"warm_up_seconds", warm}};
  add_expert_report(model, before_steps, options.steps, time, row);
  row["memory"] = bench.memory(limits);
  if (!options.trace.empty())
    row["trace"] = bench.trace(
        options.trace, {{"batch", batch}, {"context", context}, {"draft_tokens", kind.drafts}},
        [&] { rounds.step(); });
  row["ops"] = bench.ops(executor, [&] { rounds.step(); });
  row["kernels"] = bench.kernels([&] { rounds.step(); });
  return row;
}

Json decode_row(BenchModel& bench, const DecodeOptions& options, int64_t batch, int64_t context) {
  const Model& model = bench.model();
  const CacheLimits limits = limits_of(options, {}, batch, context);
  Executor executor(model, bench.context(), limits, bench.ranks());
#if DSV4_CUDA
  fill_all_caches(model, executor, options.seed);
#endif
  Decoding decoding(executor, model.config().vocab_size, open_sequences(executor, batch, context),
                    random_tokens(model, batch, options.seed));
  const auto begin = Clock::now();
  for (int i = 0; i < kWarmSteps; ++i) decoding.step();
  const double warm = seconds_between(begin, Clock::now());
  const ExpertStats before = expert_stats(model);
  std::vector<double> steps;
  for (int64_t i = 0; i < options.steps; ++i) {
    const auto from = Clock::now();
    decoding.step();
    steps.push_back(seconds_between(from, Clock::now()));
  }
  const double time = median(steps);
  Json row = {{"batch", batch},
              {"context", context},
              {"ms_per_step", 1e3 * time},
              {"tokens_per_second", static_cast<double>(batch) / time},
              {"warm_up_seconds", warm}};
  add_expert_report(model, before, options.steps, time, row);
  add_shares(decode_cost(model, options.numerics, batch, context), time, bench.roofs(), row);
  add_experts(bench.count_experts(executor, [&] { decoding.step(); }), bench.roofs(), row);
  row["memory"] = bench.memory(limits);
  row["logits_sha256"] = digest_of(decoding.logits());
  if (!options.trace.empty())
    row["trace"] = bench.trace(options.trace, {{"batch", batch}, {"context", context}},
                               [&] { decoding.step(); });
  row["ops"] = bench.ops(executor, [&] { decoding.step(); });
  row["kernels"] = bench.kernels([&] { decoding.step(); });
  return row;
}

Json prefill_row(BenchModel& bench, const PrefillOptions& options, int64_t tokens) {
  const Model& model = bench.model();
  const CacheLimits limits = limits_of(options, tokens);
  Executor executor(model, bench.context(), limits, bench.ranks());
  const std::vector<int32_t> ids = random_tokens(model, tokens, options.seed);
  const auto read = [&](SeqId seq, int64_t count) {
    for (int64_t first = 0; first < count; first += limits.max_batch_tokens) {
      const int64_t n = std::min(limits.max_batch_tokens, count - first);
      const bool last = first + n == count;
      const Work work{seq,
                      std::span(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                      last ? Work::Logits::kLast : Work::Logits::kNone};
      executor.start({&work, 1});
    }
    executor.wait();
  };
  const auto timed = [&](int64_t count) {
    const SeqId seq = executor.cache().open();
    const auto begin = Clock::now();
    read(seq, count);
    const double time = seconds_between(begin, Clock::now());
    executor.cache().close(seq);
    return time;
  };
  const double warm =
      timed(limits.max_batch_tokens);  // allocates workspaces, initializes libraries
  const ExpertStats before = expert_stats(model);
  const double time = timed(tokens);
  Json row = {{"tokens", tokens},
              {"chunk", limits.max_batch_tokens},
              {"seconds", time},
              {"tokens_per_second", static_cast<double>(tokens) / time},
              {"warm_up_seconds", warm}};
  const int64_t chunks = ceil_div(tokens, limits.max_batch_tokens);
  add_expert_report(model, before, chunks, time / static_cast<double>(chunks), row);
  add_shares(prefill_cost(model, options.numerics, tokens, limits.max_batch_tokens), time,
             bench.roofs(), row);
  row["memory"] = bench.memory(limits);
  // Measured on the first chunk.
  row["ops"] = bench.ops(executor, [&] { timed(limits.max_batch_tokens); });
  row["kernels"] = bench.kernels([&] { timed(limits.max_batch_tokens); });
  return row;
}

void print_ops(const Json& ops) {
  for (const Json& op : ops) {
    fmt::print("    {:<32} {:>6} x {:>12.1f} us", op["op"].get<std::string>(),
               op["calls"].get<int64_t>(), op["us"].get<double>());
    if (op.contains("share_of_roof"))
      fmt::print(", {:3.0f} % of the peak", 100 * op["share_of_roof"].get<double>());
    fmt::print("\n");
  }
}

void print_text(const Json& report) {
  fmt::print("{}, {} layers, {} numerics, on {}\n", report["model"].get<std::string>(),
             report["layers"].get<int64_t>(), report["numerics"].get<std::string>(),
             report["device"].get<std::string>());
  const CodebookCounts codebooks = report["codebooks"];
  if (!codebooks.empty()) fmt::print("  codebooks {}\n", to_text(codebooks));
  for (const auto& [phase, time] : report["seconds"].items())
    fmt::print("  {:<14} {:7.2f} s\n", phase, time.get<double>());
  for (const Json& row : report["results"]) {
    const bool decode = row.contains("batch");
    if (row.contains("ms_per_round")) {
      fmt::print(
          "batch {:>3}, context {:>7}: {} drafts by {}: {:8.2f} ms per round ({:.2f} of drafts), "
          "{:.2f} tokens a round, {:8.1f} tokens/s",
          row["batch"].get<int64_t>(), row["context"].get<int64_t>(),
          row["draft_tokens"].get<int64_t>(), row["drafts_from"].get<std::string>(),
          row["ms_per_round"].get<double>(), row["draft_ms"].get<double>(),
          row["expected_tokens_per_round"].get<double>(), row["tokens_per_second"].get<double>());
    } else if (decode) {
      fmt::print("batch {:>3}, context {:>7}: {:8.2f} ms per step, {:8.1f} tokens/s",
                 row["batch"].get<int64_t>(), row["context"].get<int64_t>(),
                 row["ms_per_step"].get<double>(), row["tokens_per_second"].get<double>());
    } else {
      fmt::print("prompt of {:>7} in chunks of {}: {:7.2f} s, {:8.1f} tokens/s",
                 row["tokens"].get<int64_t>(), row["chunk"].get<int64_t>(),
                 row["seconds"].get<double>(), row["tokens_per_second"].get<double>());
    }
    const char* share = decode ? "share_of_memory_roof" : "share_of_matrix_roof";
    if (row.contains(share))
      fmt::print(", {:.0f} % of the {} peak", 100 * row[share].get<double>(),
                 decode ? "memory" : "matrix");
    fmt::print("\n");
    if (row.contains("distinct_experts"))
      fmt::print("    {:.1f} experts read a layer\n", row["distinct_experts"].get<double>());
    if (const std::string outside = expert_row_text(row); !outside.empty())
      fmt::print("    {}\n", outside);
    if (row.contains("trace"))
      fmt::print("    traced: {:.1f} us, {:.1f} us without a kernel, {:.1f} us of overlap\n",
                 row["trace"]["wall_us"].get<double>(), row["trace"]["idle_us"].get<double>(),
                 row["trace"]["overlap_us"].get<double>());
    print_ops(row["ops"]);
    if (row["kernels"].is_null()) continue;
    for (const Json& kernel : row["kernels"])
      fmt::print("    {:<24} {:>6} x {:>12.1f} us\n", kernel["kernel"].get<std::string>(),
                 kernel["launches"].get<int64_t>(), kernel["us"].get<double>());
  }
}

void report(const BenchOptions& options, Json header, Json results) {
  header["results"] = std::move(results);
  if (options.json) {
    fmt::print("{}\n", dump(header));
  } else {
    print_text(header);
  }
}

void check_positions(const Model& model, const std::vector<CacheLimits>& caches) {
  const int64_t positions = model.config().max_positions;
  for (const CacheLimits& limits : caches) {
    if (limits.max_tokens > positions)
      fail(ErrorCode::kBadInput, "sequences of {} tokens exceed the model's {} positions",
           limits.max_tokens, positions);
  }
}

void check_drafts(const Model& model, const std::vector<RoundKind>& kinds) {
  const int64_t block = model.config().dspark.block_size;
  for (const RoundKind& kind : kinds) {
    if (kind.drafter == DrafterKind::kDspark && kind.drafts > block)
      fail(ErrorCode::kBadInput, "--draft-tokens {}: the model's DSpark block guesses {}",
           kind.drafts, block);
  }
}

void bench_decode(DecodeOptions options) {
  const std::vector<RoundKind> kinds = round_kinds(options.rounds, !on_cpu(options.device));
  for (const RoundKind& kind : kinds)
    if (kind.drafter != DrafterKind::kNone) options.drafter = kind.drafter;
  const std::vector<int64_t> batches = parse_numbers("--batch", options.batch, kMaxSequences),
                             contexts = parse_numbers("--context", options.context, kMaxTokens);
  std::vector<CacheLimits> caches;
  for (const int64_t context : contexts) {
    for (const int64_t batch : batches)
      for (const RoundKind& kind : kinds)
        caches.push_back(limits_of(options, kind, batch, context));
  }
  const std::unique_ptr<AtomicFile> counts = open_counts_file(options.counts_out);
  BenchModel bench(options, caches);
  check_positions(bench.model(), caches);
  check_drafts(bench.model(), kinds);
  if (counts != nullptr) require_counted_steps(bench.model());
  Json results = Json::array();
  for (const int64_t context : contexts) {
    for (const int64_t batch : batches)
      for (const RoundKind& kind : kinds)
        results.push_back(kind.drafts == 0 ? decode_row(bench, options, batch, context)
                                           : round_row(bench, options, kind, batch, context));
  }
  if (counts != nullptr) write_fetched_counts(bench.model(), *counts);
  report(options, bench.header(), std::move(results));
}

void bench_prefill(const PrefillOptions& options) {
  const std::vector<int64_t> lengths = parse_numbers("--tokens", options.tokens, kMaxTokens);
  std::vector<CacheLimits> caches;
  for (const int64_t tokens : lengths) caches.push_back(limits_of(options, tokens));
  BenchModel bench(options, caches);
  check_positions(bench.model(), caches);
  Json results = Json::array();
  for (const int64_t tokens : lengths) results.push_back(prefill_row(bench, options, tokens));
  report(options, bench.header(), std::move(results));
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Measure a whole model, or a server");
  command->require_subcommand(1);
  CLI::App* decode = command->add_subcommand(
      "decode", "Tokens per second when every step adds one token per sequence");
  decode->footer(
      "Example: dsv4 bench decode --synthetic flash --experts k3-e4m3 --device cuda --batch "
      "1,8,32 --context 4096,65536 --json\n"
      "Speculation: dsv4 bench decode --synthetic flash --experts k3-e4m3 --device cuda "
      "--speculate mtp --draft-tokens 0,1,2,3 --accept 0.79,0.61,0.46 --steps 128\n"
      "DSpark instead of MTP: --speculate dspark --draft-tokens 0,5 --accept "
      "0.86,0.8,0.77,0.66,0.89\n"
      "Contexts are not prefilled: cache entries are random (on the CPU: zero).");
  auto d = std::make_shared<DecodeOptions>();
  add_bench_options(*decode, *d);
  decode->add_option("--batch", d->batch, "concurrent sequences, a list")->capture_default_str();
  decode->add_option("--context", d->context, "tokens per sequence, a list")->capture_default_str();
  decode->add_option("--steps", d->steps, "number of steps; the median is reported")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  add_round_options(*decode, d->rounds);
  decode->add_option("--trace", d->trace,
                     "file for a trace of one step of the last combination (device, CUPTI)");
  decode
      ->add_option("--experts-counts-out", d->counts_out,
                   "write how often each expert is used, for --experts-counts")
      ->option_text("FILE")
      ->needs("--experts-memory");
  decode->callback([d, &action] { action = [d] { bench_decode(*d); }; });

  CLI::App* prefill =
      command->add_subcommand("prefill", "Tokens per second when processing a prompt");
  prefill->footer(
      "Example: dsv4 bench prefill --synthetic flash --experts k3-e4m3 --device cuda "
      "--tokens 8192,65536");
  auto p = std::make_shared<PrefillOptions>();
  add_bench_options(*prefill, *p);
  prefill->add_option("--tokens", p->tokens, "prompt lengths, a list")->capture_default_str();
  prefill->add_option("--chunk", p->chunk, "tokens per step")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  prefill->callback([p, &action] { action = [p] { bench_prefill(*p); }; });

  add_bench_serve(*command, action);
  add_bench_cache(*command, action);
  add_bench_link(*command, action);
  add_bench_exchange(*command, action);
}

}  // namespace dsv4::apps
