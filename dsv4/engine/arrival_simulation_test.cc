// A long prompt arrives beside clients that decode, in simulated time: schedule() and StepTime
// decide as in an engine, and a step takes what a table of measured times says. The load is
// arrival_scenario() of apps/cache_scenarios.h, the limits are those of docs/spec/serving.md 10.3.
//
//   milliseconds of a step of n tokens = decode[n]                                  all decode
//                                      = mixed[n] + another_prompt * (prompts - 1)  with prompts
//                                        + context * sum of the tokens before each token of them
//
// The table is of Flash with experts K=3 on an H200 (bench/results/gpu-h200): `decode` is
// decode_batches.json, `mixed` at 1,000 tokens cache_agent.json, and `mixed` at 2,048 with
// `context` gives the time of the prompt alone in cache_arrival.json. The other values were not
// measured one by one: they were fitted to the times between tokens in cache_arrival.json, with the
// scheduler that ran then. Two tables come about as close, one in which a second prompt in a step
// costs time and one in which it does not; docs/cache.md has the comparison.
//
// Not here: pages that run out, tiers, and the time of the host.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/engine/scheduler.h"
#include "dsv4/engine/step_time.h"

namespace dsv4 {
namespace {

using Points = std::vector<std::pair<double, double>>;  // (tokens, ms), lines in between

struct CostTable {
  const char* name;
  Points mixed;
  double another_prompt;  // ms
  double context;         // ms
};
void PrintTo(const CostTable& table, std::ostream* out) {
  *out << table.name;
}

const Points kDecode = {{1, 4.74}, {4, 7.04}, {8, 9.47}, {16, 14.36}, {32, 21.24}, {64, 33.54}};

const CostTable kTables[] = {
    {.name = "prompts_cost",
     .mixed = {{1, 20}, {160, 68}, {288, 84}, {1000, 165}, {2048, 447}},
     .another_prompt = 6.8,
     .context = 6.6e-7},
    {.name = "prompts_are_free",
     .mixed = {{1, 20}, {160, 56}, {288, 94}, {416, 105}, {544, 109}, {1000, 165}, {2048, 454}},
     .another_prompt = 0,
     .context = 6.0e-7}};

double at(const Points& points, int64_t tokens) {
  const auto x = static_cast<double>(tokens);
  size_t i = 1;
  while (i + 1 < points.size() && points[i].first < x) ++i;
  const auto [x0, y0] = points[i - 1];
  const auto [x1, y1] = points[i];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

constexpr int64_t kClients = 32, kClientPrompt = 2048, kClientAnswer = 256, kLongPrompt = 100'000,
                  kMaxBatchTokens = 2048, kStep = 128, kInterval = 2048, kLeastPromptTokens = 32;
constexpr double kMaxItl = 0.1;  // seconds

const CacheGroup kGroups[] = {  // of Flash, with room for all
    {.tokens_per_entry = 1, .page_entries = 64, .num_pages = 1 << 20, .keep_tokens = 128},
    {.tokens_per_entry = 4, .page_entries = 64, .num_pages = 1 << 20},
    {.tokens_per_entry = 128, .page_entries = 2, .num_pages = 1 << 20}};

struct Request {
  int64_t prompt = 0, answer = 0;
  double submitted = 0;
  int64_t cached = 0, checkpoint = 0;
  std::vector<double> times = {};  // of its tokens

  int64_t generated() const { return static_cast<int64_t>(times.size()); }
  int64_t length() const { return prompt + generated(); }
  bool decoding() const { return generated() > 0 && cached + 1 == length(); }
  bool done() const { return generated() == answer; }
  double first() const { return times.at(0) - submitted; }

  // As Engine: checkpoints at the prompt's last multiple of 128 and 2,048 after the one before.
  bool wants_checkpoint(int64_t tokens) const {
    return tokens == (length() - 1) / kStep * kStep || tokens - checkpoint >= kInterval;
  }
  int64_t next_stop() const {
    for (int64_t tokens = (cached / kStep + 1) * kStep; tokens <= length() - kStep; tokens += kStep)
      if (wants_checkpoint(tokens)) return tokens;
    return 0;
  }
};

using Id = int64_t;  // in order of arrival

// An engine without a network, and a device that has the times of the table.
class SimulatedEngine {
 public:
  explicit SimulatedEngine(const CostTable& table) : table_(table) {}

  Id submit(int64_t prompt, int64_t answer) {
    const auto id = static_cast<Id>(requests_.size());
    requests_[id] = {.prompt = prompt, .answer = answer, .submitted = now_};
    open_.push_back(id);
    return id;
  }
  const Request& request(Id id) const { return requests_.at(id); }
  const std::map<Id, Request>& requests() const { return requests_; }
  double now() const { return now_; }
  void finish(Id id) {
    while (!request(id).done()) step();
  }

  void step() {
    std::sort(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(num_running_));
    const Schedule plan = plan_step();
    num_running_ = plan.num_running;
    int64_t tokens = 0, prompts = 0;
    double before = 0;  // tokens before each token of the prompts
    bool waits = false;
    for (const Schedule::Chunk& chunk : plan.chunks) {
      const Request& r = requests_[open_[chunk.request]];
      tokens += chunk.count;
      waits |= r.cached + chunk.count == r.length();
      if (r.decoding()) continue;
      ++prompts;
      const auto count = static_cast<double>(chunk.count);
      before += count * (static_cast<double>(r.cached) + count / 2);
    }
    const double ms = prompts == 0 ? at(kDecode, tokens)
                                   : at(table_.mixed, tokens) + table_.context * before +
                                         table_.another_prompt * static_cast<double>(prompts - 1);
    run(tokens, ms / 1e3, waits);
    for (const Schedule::Chunk& chunk : plan.chunks)
      advance(requests_[open_[chunk.request]], chunk.count);
    num_running_ -= std::erase_if(open_, [&](Id id) { return request(id).done(); });
  }

 private:
  Schedule plan_step() const {
    std::vector<ScheduledRequest> state;
    for (const Id id : open_) {
      const Request& r = request(id);
      state.push_back({.tokens = r.length(),
                       .cached = r.cached,
                       .answer_left = r.answer - r.generated(),
                       .decoding = r.decoding(),
                       .stop_at = r.decoding() ? 0 : r.next_stop()});
    }
    const std::vector<int64_t> free_pages(std::size(kGroups), 1 << 19);
    const auto others = static_cast<int64_t>(std::ranges::count_if(
        state, [](const ScheduledRequest& request) { return request.decoding; }));
    return schedule(
        {.requests = state,
         .num_running = num_running_,
         .groups = kGroups,
         .free_pages = free_pages,
         .own_pages = nullptr},
        {.max_batch_tokens = kMaxBatchTokens,
         .max_prompt_tokens = step_time_.tokens_within(kMaxItl, others + kLeastPromptTokens,
                                                       others + kMaxBatchTokens) -
                              others,
         .max_sequences = static_cast<int>(kClients) + 1,
         .chunk_step = kStep});
  }

  // The host waits for the tokens of a step, or runs one step ahead when there are none. The time
  // of the steps that it did not wait for is then in what it observes, as in an engine.
  void run(int64_t tokens, double seconds, bool waits) {
    const double begin = now_;
    now_ = std::max(now_, before_last_end_);
    const double end = std::max(now_, last_end_) + seconds;
    before_last_end_ = std::exchange(last_end_, end);
    if (!waits) return;
    now_ = end;
    step_time_.observe(tokens, now_ - begin);
  }

  void advance(Request& r, int64_t count) const {
    const int64_t end = r.cached + count, multiple = end / kStep * kStep;
    if (multiple > r.cached && (r.decoding() || r.wants_checkpoint(multiple)))
      r.checkpoint = multiple;
    r.cached = end;
    if (end == r.length()) r.times.push_back(now_);
  }

  const CostTable& table_;
  std::map<Id, Request> requests_;
  std::vector<Id> open_;  // the first num_running_ of them run
  size_t num_running_ = 0;
  double now_ = 0, last_end_ = 0, before_last_end_ = 0;
  StepTime step_time_;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5));
}

struct Outcome {
  double alone = 0, beside = 0;        // seconds of the long prompt
  std::vector<double> before, during;  // seconds between tokens of clients
  // While the long prompt is computed: when clients got their first tokens, in order of arrival,
  // between its begin and its end.
  std::vector<double> firsts;
  int sent = 0;             // prompts of clients meanwhile
  double longest_wait = 0;  // of those among them that got a first token meanwhile, seconds

  double share() const { return alone / beside; }
  double longest_without_first() const {
    double longest = 0;
    for (size_t i = 1; i < firsts.size(); ++i)
      longest = std::max(longest, firsts[i] - firsts[i - 1]);
    return longest;
  }
};

std::vector<double> gaps(const SimulatedEngine& engine, double from, double to) {
  std::vector<double> found;
  for (const auto& [id, r] : engine.requests())
    for (size_t i = 1; i < r.times.size(); ++i)
      if (r.times[i] > from && r.times[i] <= to) found.push_back(r.times[i] - r.times[i - 1]);
  return found;
}

// As arrival_scenario(): the prompt alone, clients that each have one request at a time until all
// decode and 100 steps more, and then another such prompt beside them.
Outcome run_scenario(const CostTable& table) {
  SimulatedEngine engine(table);
  Outcome outcome;
  engine.finish(engine.submit(kClientPrompt, 4));
  const Id first = engine.submit(kLongPrompt, 1);
  engine.finish(first);
  outcome.alone = engine.request(first).first();

  std::vector<std::optional<Id>> clients(kClients);
  int64_t started = 0;
  const auto step = [&] {
    for (std::optional<Id>& id : clients) {
      if (id && !engine.request(*id).done()) continue;
      // First answers of different lengths, so that the clients do not stay in step.
      const int64_t answer =
          started < kClients ? 1 + kClientAnswer * (started + 1) / kClients : kClientAnswer;
      id = engine.submit(kClientPrompt, answer);
      ++started;
    }
    engine.step();
  };
  const auto waits = [&](std::optional<Id> id) { return engine.request(*id).generated() == 0; };
  do step();
  while (std::ranges::any_of(clients, waits));
  const double settled = engine.now();
  for (int i = 0; i < 100; ++i) step();
  const double begin = engine.now();
  const Id second = engine.submit(kLongPrompt, 1);
  while (!engine.request(second).done()) step();
  const double end = engine.now();

  outcome.beside = engine.request(second).first();
  outcome.before = gaps(engine, settled, begin);
  outcome.during = gaps(engine, begin, end);
  outcome.firsts = {begin};
  for (const auto& [id, r] : engine.requests()) {
    if (id == second) continue;
    outcome.sent += id > second;
    if (r.times.empty() || r.times[0] <= begin || r.times[0] > end) continue;
    outcome.firsts.push_back(r.times[0]);
    if (id > second) outcome.longest_wait = std::max(outcome.longest_wait, r.first());
  }
  outcome.firsts.push_back(end);
  return outcome;
}

std::string spread(const std::vector<double>& seconds) {
  return fmt::format("{:.1f} {:.1f} {:.1f} {:.1f} ({})", 1e3 * quantile(seconds, 0.5),
                     1e3 * quantile(seconds, 0.9), 1e3 * quantile(seconds, 0.99),
                     1e3 * quantile(seconds, 1), seconds.size());
}

class ArrivalSimulation : public testing::TestWithParam<CostTable> {};

TEST_P(ArrivalSimulation, ALongPromptBesideClients) {
  const Outcome outcome = run_scenario(GetParam());
  const size_t served = outcome.firsts.size() - 2;
  fmt::print("ms between tokens, p50 p90 p99 max (count): before {}, during {}\n",
             spread(outcome.before), spread(outcome.during));
  fmt::print("the prompt: {:.1f} s alone, {:.1f} s beside, {:.3f} of its rate\n", outcome.alone,
             outcome.beside, outcome.share());
  fmt::print("clients: {} prompts sent, {} first tokens, {:.1f} s without one, {:.1f} s for one\n",
             outcome.sent, served, outcome.longest_without_first(), outcome.longest_wait);
  EXPECT_NEAR(outcome.alone, 24.975, 0.5) << "measured";
  // Steps of prompts and of 32 tokens of answers together.
  EXPECT_LE(quantile(outcome.during, 0.5), 1.05 * kMaxItl);
  EXPECT_LE(quantile(outcome.during, 0.99), 1.15 * kMaxItl);
  EXPECT_GE(outcome.share(), 0.60);
  // Prompts of 2,048 tokens that pass get an eighth of some 300 tokens in steps of 101 to 104 ms.
  EXPECT_GE(served, 8u);
  EXPECT_LE(outcome.longest_without_first(), 7);
  EXPECT_TRUE(std::ranges::is_sorted(outcome.firsts)) << "one passed another that came before";
}

INSTANTIATE_TEST_SUITE_P(Tables, ArrivalSimulation, testing::ValuesIn(kTables),
                         [](const auto& table) { return std::string(table.param.name); });

}  // namespace
}  // namespace dsv4
