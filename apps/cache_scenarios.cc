#include "apps/cache_scenarios.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/bench_model.h"
#include "apps/quantiles.h"
#include "dsv4/base/error.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSlack = 256;  // tokens of pages beside what a scenario counts

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Requests with the time of each of their tokens.
class TimedRequests : public TokenSink {
 public:
  struct Request {
    Clock::time_point submitted;
    std::vector<Clock::time_point> times;  // of its tokens
    std::vector<int32_t> tokens;
    int64_t cached = 0;
    bool done = false;
    double first() const { return seconds_between(submitted, times.at(0)); }
  };

  RequestId submit(Engine& engine, std::span<const int32_t> prompt, GenerateParams params) {
    params.sampling.temperature = 0;
    const auto now = Clock::now();
    const RequestId id = engine.submit(prompt, params, *this);
    requests_[id].submitted = now;
    return id;
  }
  // Runs a request alone.
  const Request& run(Engine& engine, std::span<const int32_t> prompt, GenerateParams params) {
    const RequestId id = submit(engine, prompt, std::move(params));
    while (engine.step()) {
    }
    return requests_.at(id);
  }
  const Request& at(RequestId id) const { return requests_.at(id); }
  const std::map<RequestId, Request>& all() const { return requests_; }

  void on_start(RequestId id, int64_t cached) override { requests_[id].cached = cached; }
  void on_token(RequestId id, const Sampled& token) override {
    Request& request = requests_[id];
    request.times.push_back(Clock::now());
    request.tokens.push_back(token.id);
  }
  void on_finish(RequestId id, Finish) override { requests_[id].done = true; }

 private:
  std::map<RequestId, Request> requests_;
};

void append(std::vector<int32_t>& text, std::span<const int32_t> more) {
  text.insert(text.end(), more.begin(), more.end());
}

// A conversation that grows by new tokens and an answer each turn.
class Conversation {
 public:
  Conversation(const Model& model, const ScenarioOptions& options, uint64_t number)
      : model_(model), options_(options), seed_(options.seed + 1000 * (number + 1)) {
    append(text_, random_tokens(model, options.head, seed_));
  }

  // The text with the next turn's new tokens; the renderer knows where they begin.
  const std::vector<int32_t>& next_turn() {
    fork_ = static_cast<int64_t>(text_.size());
    append(text_, random_tokens(model_, options_.new_tokens, ++seed_));
    return text_;
  }
  void add_answer(std::span<const int32_t> answer) { append(text_, answer); }
  GenerateParams params() const {
    return {.max_new_tokens = options_.answer, .forks = {options_.head, fork_}};
  }
  const std::vector<int32_t>& text() const { return text_; }

 private:
  const Model& model_;
  const ScenarioOptions& options_;
  uint64_t seed_;
  int64_t fork_ = 0;
  std::vector<int32_t> text_;
};

int64_t conversation_tokens(const ScenarioOptions& options, int64_t turns) {
  return options.head + turns * (options.new_tokens + options.answer) + kSlack;
}

// One sequence that stays in the cache: what the new tokens alone cost. Milliseconds of each turn.
std::vector<double> resident_turns(const Model& model, const ScenarioOptions& options) {
  const CacheLimits limits{.max_tokens = conversation_tokens(options, options.turns + 1),
                           .max_batch_tokens = options.max_batch_tokens};
  Executor executor(model, options.context, limits);
  const SeqId seq = executor.cache().open();
  const auto feed = [&](std::span<const int32_t> ids) {
    while (!ids.empty()) {
      const auto count = std::min(ids.size(), static_cast<size_t>(limits.max_batch_tokens));
      const bool last = count == ids.size();
      const Work work{seq, ids.first(count), last ? Work::Logits::kLast : Work::Logits::kNone};
      executor.start({&work, 1});
      ids = ids.subspan(count);
    }
    SampleLists greedy(model.config().vocab_size);
    greedy.add({.temperature = 0}, 0);
    executor.sample(greedy.rows());
  };
  Conversation conversation(model, options, 0);
  feed(conversation.text());
  std::vector<double> turns;
  for (int64_t turn = 0; turn < options.turns; ++turn) {
    const size_t before = conversation.text().size();
    const std::span<const int32_t> text = conversation.next_turn();
    const auto begin = Clock::now();
    feed(text.subspan(before));
    turns.push_back(1e3 * seconds_between(begin, Clock::now()));
    const std::vector<int32_t> answer(static_cast<size_t>(options.answer), 1);
    conversation.add_answer(answer);
    feed(answer);
  }
  return turns;
}

struct Turns {
  std::vector<double> first_ms;
  std::vector<int64_t> computed, steps;  // steps: up to the end of the answer
};

void run_turn(Engine& engine, Conversation& conversation, Turns& turns) {
  TimedRequests requests;
  const EngineStats before = engine.stats();
  const TimedRequests::Request& request =
      requests.run(engine, conversation.next_turn(), conversation.params());
  const EngineStats after = engine.stats();
  turns.first_ms.push_back(1e3 * request.first());
  turns.computed.push_back(after.prefill_tokens - before.prefill_tokens);
  turns.steps.push_back(after.steps - before.steps);
  conversation.add_answer(request.tokens);
}

Json turns_json(const char* tier, const Turns& turns, const ScenarioOptions& options,
                const std::vector<double>& resident) {
  std::vector<double> ratios, extra;
  int64_t most = 0;  // tokens computed again; the first turn is all new
  for (size_t i = 1; i < turns.first_ms.size(); ++i) {
    ratios.push_back(turns.first_ms[i] / resident[i]);
    extra.push_back(turns.first_ms[i] - resident[i]);
    // The last token of an answer is new too: it was chosen and never computed.
    most = std::max(most, turns.computed[i] - options.new_tokens - 1);
  }
  return {{"tier", tier},
          {"ratio_p50", quantile(ratios, 0.5)},
          {"ratio_p90", quantile(ratios, 0.9)},
          {"ratio_max", quantile(ratios, 1)},
          {"extra_ms_p50", quantile(extra, 0.5)},
          {"extra_ms_p90", quantile(extra, 0.9)},
          {"extra_ms_max", quantile(extra, 1)},
          {"recomputed_max", most},
          {"ttft_ms", turns.first_ms},
          {"computed_tokens", turns.computed},
          {"steps", turns.steps}};
}

// All turns with what is stored dropped from the faster tiers before each of them.
Turns run_agent(Engine& engine, Conversation& conversation, const ScenarioOptions& options,
                std::optional<PrefixTier> drop) {
  Turns turns;
  for (int64_t turn = 0; turn < options.turns; ++turn) {
    if (drop && *drop == PrefixTier::kRam) engine.flush_prefixes();
    if (drop) engine.drop_prefixes(*drop);
    run_turn(engine, conversation, turns);
  }
  engine.flush_prefixes();
  return turns;
}

// Tokens per second of the turns after the first, which makes the conversations.
double turn_rate(const Model& model, const ScenarioOptions& options, bool limited, Json& row) {
  Engine engine(model, memory_engine(options, limited));
  std::vector<Conversation> conversations;
  TimedRequests requests;
  for (int64_t c = 0; c < options.conversations; ++c) {
    conversations.emplace_back(model, options, static_cast<uint64_t>(c));
    const auto& request =
        requests.run(engine, conversations.back().next_turn(), conversations.back().params());
    conversations.back().add_answer(request.tokens);
  }
  const EngineStats before = engine.stats();
  std::map<RequestId, size_t> running;
  std::vector<int64_t> turns(conversations.size(), 0);
  size_t next = 0;
  const auto begin = Clock::now();
  const auto start_more = [&] {
    for (size_t tried = 0;
         tried < turns.size() && running.size() < static_cast<size_t>(options.at_once); ++tried) {
      const size_t c = next++ % turns.size();
      const bool busy = std::ranges::any_of(running, [&](const auto& r) { return r.second == c; });
      if (busy || turns[c] == options.memory_turns) continue;
      ++turns[c];
      const std::vector<int32_t>& text = conversations[c].next_turn();
      running[requests.submit(engine, text, conversations[c].params())] = c;
    }
  };
  for (start_more(); !running.empty(); start_more()) {
    engine.step();
    std::erase_if(running, [&](const auto& entry) {
      const TimedRequests::Request& request = requests.at(entry.first);
      if (request.done) conversations[entry.second].add_answer(request.tokens);
      return request.done;
    });
  }
  const double time = seconds_between(begin, Clock::now());
  const EngineStats after = engine.stats();
  const int64_t tokens =
      options.conversations * options.memory_turns * (options.new_tokens + options.answer);
  row = {{"seconds", time},
         {"tokens_per_second", static_cast<double>(tokens) / time},
         {"computed_tokens", after.prefill_tokens - before.prefill_tokens},
         {"tokens_from_ram", after.ram_tokens - before.ram_tokens},
         {"tokens_from_disk", after.disk_tokens - before.disk_tokens},
         {"preemptions", after.preemptions - before.preemptions}};
  return static_cast<double>(tokens) / time;
}

// Clients that each have one request at a time, with prompts that share nothing.
class ClosedLoop {
 public:
  ClosedLoop(const Model& model, const ScenarioOptions& options)
      : model_(model), options_(options), current_(static_cast<size_t>(options.clients)) {}

  void start_missing(Engine& engine) {
    for (std::optional<RequestId>& request : current_) {
      if (request && !requests.at(*request).done) continue;
      // First answers of different lengths, so that the clients do not stay in step.
      const int64_t first = 1 + options_.client_answer * (started_ + 1) / options_.clients;
      const int64_t answer = started_ < options_.clients ? first : options_.client_answer;
      const std::vector<int32_t> prompt = random_tokens(
          model_, options_.client_prompt, options_.seed + 77'000 + static_cast<uint64_t>(started_));
      request = requests.submit(engine, prompt, {.max_new_tokens = answer});
      ++started_;
    }
  }
  bool all_decode() const {
    return std::ranges::all_of(current_,
                               [&](const auto& r) { return r && !requests.at(*r).times.empty(); });
  }
  // Milliseconds between tokens, of tokens in this time.
  std::vector<double> gaps(Clock::time_point from, Clock::time_point to) const {
    std::vector<double> gaps;
    for (const auto& [id, request] : requests.all()) {
      for (size_t i = 1; i < request.times.size(); ++i) {
        if (request.times[i] > from && request.times[i] <= to)
          gaps.push_back(1e3 * seconds_between(request.times[i - 1], request.times[i]));
      }
    }
    return gaps;
  }
  // Milliseconds to the first token of the requests that were submitted in this time.
  std::vector<double> first_ms(Clock::time_point from, Clock::time_point to) const {
    std::vector<double> first;
    for (const auto& [id, request] : requests.all()) {
      const bool submitted = request.submitted > from && request.submitted <= to;
      if (submitted && !request.times.empty()) first.push_back(1e3 * request.first());
    }
    return first;
  }

  TimedRequests requests;

 private:
  const Model& model_;
  const ScenarioOptions& options_;
  std::vector<std::optional<RequestId>> current_;
  int64_t started_ = 0;
};

}  // namespace

EngineOptions agent_engine(const ScenarioOptions& options) {
  EngineOptions engine{.numerics = options.context.numerics,
                       .deterministic = options.context.need_batch_invariant,
                       .max_tokens = conversation_tokens(options, options.turns + 2),
                       .max_batch_tokens = options.max_batch_tokens,
                       .prefix_checkpoints = 16,
                       .model_identity = options.identity};
  engine.tiers.ram_bytes = options.ram_bytes;
  engine.longest_load = std::chrono::seconds(60);  // to measure it, not to avoid it
  return engine;
}

Json agent_scenario(const Model& model, const ScenarioOptions& options) {
  const std::vector<double> resident = resident_turns(model, options);
  Json tiers = Json::array();
  EngineOptions disk = agent_engine(options);
  disk.tiers.folder = options.folder;
  for (const auto& [name, drop] :
       std::initializer_list<std::pair<const char*, std::optional<PrefixTier>>>{
           {"gpu", std::nullopt}, {"ram", PrefixTier::kCache}, {"disk", PrefixTier::kRam}}) {
    const bool on_disk = drop == PrefixTier::kRam;
    Conversation conversation(model, options, 0);
    {
      Engine engine(model, on_disk ? disk : agent_engine(options));
      tiers.push_back(
          turns_json(name, run_agent(engine, conversation, options, drop), options, resident));
    }
    if (!on_disk) continue;
    const auto begin = Clock::now();
    Engine engine(model, disk);
    const double start = seconds_between(begin, Clock::now());
    const EngineStats before = engine.stats();
    Turns turns;
    run_turn(engine, conversation, turns);
    const int64_t recomputed = turns.computed[0] - options.new_tokens - 1;
    tiers.push_back({{"tier", "restart"},
                     {"engine_start_seconds", start},
                     {"units_found", before.units.disk_units},
                     {"ttft_ms", turns.first_ms[0]},
                     {"extra_ms", turns.first_ms[0] - resident.back()},
                     {"recomputed", recomputed},
                     {"tokens_from_disk", engine.stats().disk_tokens}});
  }
  return {{"scenario", "agent"},      {"head", options.head},
          {"turns", options.turns},   {"new_tokens", options.new_tokens},
          {"answer", options.answer}, {"resident_ms", resident},
          {"tiers", std::move(tiers)}};
}

EngineOptions memory_engine(const ScenarioOptions& options, bool limited) {
  const int64_t each = conversation_tokens(options, options.memory_turns + 1);
  const int64_t all = options.conversations * each;
  EngineOptions engine{.numerics = options.context.numerics,
                       .deterministic = options.context.need_batch_invariant,
                       .max_tokens = each,
                       .max_sequences = static_cast<int>(options.conversations),
                       .cache_tokens = limited ? std::max(each, all / 2) : all,
                       .max_batch_tokens = options.max_batch_tokens,
                       .prefix_checkpoints = static_cast<int>(4 * options.conversations),
                       .model_identity = options.identity};
  engine.tiers.ram_bytes = options.ram_bytes;
  return engine;
}

Json memory_scenario(const Model& model, const ScenarioOptions& options) {
  Json all, half;
  const double unlimited = turn_rate(model, options, false, all),
               limited = turn_rate(model, options, true, half);
  return {{"scenario", "memory"},       {"conversations", options.conversations},
          {"at_once", options.at_once}, {"turns", options.memory_turns},
          {"head", options.head},       {"new_tokens", options.new_tokens},
          {"answer", options.answer},   {"unlimited", std::move(all)},
          {"half", std::move(half)},    {"ratio", limited / unlimited}};
}

EngineOptions arrival_engine(const ScenarioOptions& options) {
  const int64_t each = options.client_prompt + options.client_answer + kSlack,
                most = std::max(options.long_prompt, options.client_prompt) + kSlack +
                       options.client_answer;
  return {.numerics = options.context.numerics,
          .deterministic = options.context.need_batch_invariant,
          .max_tokens = most,
          .max_sequences = static_cast<int>(options.clients) + 1,
          .cache_tokens = most + options.clients * each,
          .max_batch_tokens = options.max_batch_tokens,
          .longest_step = std::chrono::milliseconds(options.max_itl_ms),
          .prefix_checkpoints = 16};
}

Json arrival_scenario(const Model& model, const ScenarioOptions& options) {
  Engine engine(model, arrival_engine(options));
  TimedRequests alone;
  alone.run(engine, random_tokens(model, options.client_prompt, options.seed),
            {.max_new_tokens = 4});
  const std::vector<int32_t> first = random_tokens(model, options.long_prompt, options.seed + 1),
                             second = random_tokens(model, options.long_prompt, options.seed + 2);
  const double alone_seconds = alone.run(engine, first, {.max_new_tokens = 1}).first();

  ClosedLoop clients(model, options);
  const auto step = [&] {
    clients.start_missing(engine);
    engine.step();
  };
  do step();
  while (!clients.all_decode());
  const auto settled = Clock::now();
  for (int i = 0; i < 100; ++i) step();
  const auto begin = Clock::now();
  const RequestId id = alone.submit(engine, second, {.max_new_tokens = 1});
  while (!alone.at(id).done) step();
  const auto end = Clock::now();
  while (!clients.all_decode()) engine.step();  // to the first tokens of those that came meanwhile
  const double seconds = alone.at(id).first();
  return {{"scenario", "arrival"},
          {"clients", options.clients},
          {"client_prompt", options.client_prompt},
          {"client_answer", options.client_answer},
          {"long_prompt", options.long_prompt},
          {"max_itl_ms", options.max_itl_ms},
          {"itl_before_ms", spread(clients.gaps(settled, begin))},
          {"itl_ms", spread(clients.gaps(begin, end))},
          {"client_first_ms", spread(clients.first_ms(begin, end))},
          {"alone_seconds", alone_seconds},
          {"beside_seconds", seconds},
          {"rate_ratio", alone_seconds / seconds}};
}

}  // namespace dsv4::apps
