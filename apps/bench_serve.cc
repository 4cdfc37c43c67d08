// dsv4 bench serve URL: load on any server with OpenAI's completions, over loopback or a network:
// time to the first token, time between tokens, throughput (docs/spec/serving.md 10.3), by the
// definitions of AIPerf and of the benchmarks of vLLM and SGLang:
//
//   ttft    from the request to its first token
//   tpot    time per output token after the first one, the mean of a request
//   total   tokens of prompts and answers, by the server's usage, over the time of the whole load
//
// Closed loop: --clients of them, each with one request at a time. --rate R: requests start at
// random (Poisson) R times a second, however many are running. Every request is one thread with a
// blocking socket: the load of a server with thousands of streams needs another tool.

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/json_report.h"
#include "apps/quantiles.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/base/thread.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct LoadOptions {
  std::string url = "http://127.0.0.1:8000", model, key;
  int64_t requests = 100, clients = 8, prompt_words = 100, prompt_tokens = 0, vocabulary = 1000;
  int64_t tokens = 64;
  double rate = 0;
  uint64_t seed = 0;
  bool json = false;
};

struct LoadTarget {
  std::string host, port = "80", path;
};

struct LoadResult {
  int status = 0;  // 0: no answer
  int64_t tokens = 0, prompt_tokens = 0;
  double first = 0, last = 0, total = 0;
  std::vector<double> gaps;
};

double elapsed(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

LoadTarget target_of(const std::string& url) {
  constexpr std::string_view kHttp = "http://";
  if (!url.starts_with(kHttp)) fail(ErrorCode::kBadInput, "{}: want http://HOST[:PORT]", url);
  LoadTarget target;
  const std::string rest = url.substr(kHttp.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string authority = rest.substr(0, slash);
  const size_t colon = authority.rfind(':');
  target.host = authority.substr(0, colon);
  if (colon != authority.npos) target.port = authority.substr(colon + 1);
  target.path = rest.substr(slash);
  if (target.path.ends_with('/')) target.path.pop_back();
  if (!target.path.ends_with("/v1")) target.path += "/v1";
  return target;
}

class LoadConnection {
 public:
  explicit LoadConnection(const LoadTarget& target) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found) != 0)
      fail(ErrorCode::kBadInput, "no host {}", target.host);
    for (const addrinfo* at = found; at != nullptr && fd_ < 0; at = at->ai_next) {
      fd_ = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
      if (fd_ >= 0 && connect(fd_, at->ai_addr, at->ai_addrlen) != 0) {
        close(fd_);
        fd_ = -1;
      }
    }
    freeaddrinfo(found);
  }
  ~LoadConnection() {
    if (fd_ >= 0) close(fd_);
  }
  LoadConnection(const LoadConnection&) = delete;
  LoadConnection& operator=(const LoadConnection&) = delete;

  bool send_all(std::string_view bytes) {
    while (fd_ >= 0 && !bytes.empty()) {
      const ssize_t size = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(size));
    }
    return fd_ >= 0;
  }
  // Empty at the end.
  std::string_view receive() {
    const ssize_t size = fd_ < 0 ? 0 : recv(fd_, buffer_, sizeof buffer_, 0);
    return {buffer_, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  }

 private:
  int fd_ = -1;
  char buffer_[16 << 10];
};

// Words, or ids, that differ between requests, so that no prefix cache has them.
Json random_prompt(const LoadOptions& options, uint64_t number) {
  Rng rng(options.seed * 1'000'003 + number);
  if (options.prompt_tokens > 0) {
    Json ids = Json::array();
    constexpr int64_t kSpecial = 3;  // begin, end, padding
    for (int64_t i = 0; i < options.prompt_tokens; ++i)
      ids.push_back(kSpecial + rng.below(options.vocabulary - kSpecial));
    return ids;
  }
  std::string prompt;
  for (int64_t i = 0; i < options.prompt_words; ++i) {
    for (int64_t letters = 2 + rng.below(6); letters > 0; --letters)
      prompt += static_cast<char>('a' + rng.below(26));
    prompt += ' ';
  }
  return prompt;
}

// The number after "name": in the text, or -1.
int64_t number_after(std::string_view text, std::string_view name) {
  const size_t at = text.rfind(name);
  if (at == text.npos) return -1;
  const size_t digits = text.find_first_of("0123456789", at + name.size());
  return digits == text.npos
             ? -1
             : std::strtoll(std::string(text.substr(digits, 12)).c_str(), nullptr, 10);
}

std::string request_text(const LoadOptions& options, const LoadTarget& target, uint64_t number) {
  Json body = {{"prompt", random_prompt(options, number)},
               {"max_tokens", options.tokens},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"ignore_eos", true},
               {"seed", number}};
  if (!options.model.empty()) body["model"] = options.model;
  const std::string text = dump(body);
  std::string head = fmt::format(
      "POST {}/completions HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nContent-Length: {}\r\n",
      target.path, target.host, target.port, text.size());
  if (!options.key.empty()) head += "Authorization: Bearer " + options.key + "\r\n";
  return head + "\r\n" + text;
}

LoadResult run_request(const LoadOptions& options, const LoadTarget& target, uint64_t number) {
  const std::string request = request_text(options, target, number);
  LoadResult result;
  const auto begin = Clock::now();
  LoadConnection connection(target);
  if (!connection.send_all(request)) return result;
  std::string unread, usage;
  constexpr size_t kUsageBytes = 4096;  // the end of an answer, where the usage is
  auto latest = begin;
  for (;;) {
    const std::string_view piece = connection.receive();
    if (piece.empty()) break;
    const auto now = Clock::now();
    unread += piece;
    if (result.status == 0 && unread.size() >= 12) result.status = std::atoi(unread.c_str() + 9);
    // One event with text is one token, but for characters that span several.
    constexpr std::string_view kText = "\"text\":\"";
    size_t at = 0;
    int64_t events = 0;
    while ((at = unread.find(kText, at)) != unread.npos && at + kText.size() < unread.size()) {
      at += kText.size();
      events += unread[at] != '"';
    }
    usage += piece;
    if (usage.size() > kUsageBytes) usage.erase(0, usage.size() - kUsageBytes);
    unread.erase(0, unread.size() > kText.size() ? unread.size() - kText.size() : 0);
    if (events == 0) continue;
    if (result.tokens == 0) {
      result.first = elapsed(begin, now);
    } else {
      for (int64_t i = 0; i < events; ++i)
        result.gaps.push_back(elapsed(latest, now) / static_cast<double>(events));
    }
    latest = now;
    result.tokens += events;
  }
  result.last = elapsed(begin, latest);
  result.total = elapsed(begin, Clock::now());
  // The last event counts better than the events do.
  result.tokens = std::max(result.tokens, number_after(usage, "\"completion_tokens\""));
  result.prompt_tokens = std::max<int64_t>(0, number_after(usage, "\"prompt_tokens\""));
  return result;
}

std::vector<LoadResult> run_load(const LoadOptions& options, const LoadTarget& target) {
  std::vector<LoadResult> results(static_cast<size_t>(options.requests));
  std::atomic<int64_t> next = 0;
  std::vector<std::jthread> threads;  // join where one of them cannot start
  if (options.rate > 0) {
    Rng rng(options.seed);
    auto start = Clock::now();
    for (int64_t i = 0; i < options.requests; ++i) {
      start += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(-std::log(1 - rng.uniform()) / options.rate));
      std::this_thread::sleep_until(start);
      threads.push_back(start_thread("a client", [&, i] {
        results[static_cast<size_t>(i)] = run_request(options, target, static_cast<uint64_t>(i));
      }));
    }
  } else {
    for (int64_t c = 0; c < std::min(options.clients, options.requests); ++c) {
      threads.push_back(start_thread("a client", [&] {
        for (int64_t i = next++; i < options.requests; i = next++)
          results[static_cast<size_t>(i)] = run_request(options, target, static_cast<uint64_t>(i));
      }));
    }
  }
  for (std::jthread& thread : threads) thread.join();
  return results;
}

void print_report(const Json& report) {
  fmt::print("{} requests in {:.2f} s: {} good, {} refused (429, 503), {} failed\n",
             report["requests"].get<int64_t>(), report["seconds"].get<double>(),
             report["good"].get<int64_t>(), report["refused"].get<int64_t>(),
             report["failed"].get<int64_t>());
  fmt::print("{:.1f} tokens/s, {:.1f} with prompts, {:.2f} requests/s\n",
             report["tokens_per_second"].get<double>(),
             report["total_tokens_per_second"].get<double>(),
             report["requests_per_second"].get<double>());
  const auto line = [](const char* what, const Json& values) {
    fmt::print("{:22} p50 {:8.2f} ms   p90 {:8.2f} ms   p99 {:8.2f} ms\n", what,
               values["p50"].get<double>() * 1e3, values["p90"].get<double>() * 1e3,
               values["p99"].get<double>() * 1e3);
  };
  line("time to first token", report["ttft_seconds"]);
  line("time per output token", report["tpot_seconds"]);
  line("time between tokens", report["itl_seconds"]);
  line("whole request", report["e2e_seconds"]);
}

void bench_server(const LoadOptions& options) {
  const LoadTarget target = target_of(options.url);
  const auto begin = Clock::now();
  const std::vector<LoadResult> results = run_load(options, target);
  const double time = elapsed(begin, Clock::now());
  std::vector<double> first, each, gaps, total;
  int64_t tokens = 0, prompts = 0, good = 0, refused = 0, failed = 0;
  for (const LoadResult& result : results) {
    tokens += result.tokens, prompts += result.prompt_tokens;
    if (result.status == 200 && result.tokens > 0) {
      ++good;
      first.push_back(result.first);
      if (result.tokens > 1)
        each.push_back((result.last - result.first) / static_cast<double>(result.tokens - 1));
      total.push_back(result.total);
      gaps.insert(gaps.end(), result.gaps.begin(), result.gaps.end());
    } else if (result.status == 429 || result.status == 503) {
      ++refused;
    } else {
      ++failed;
    }
  }
  const Json report = {{"url", options.url},
                       {"requests", options.requests},
                       {"good", good},
                       {"refused", refused},
                       {"failed", failed},
                       {"seconds", time},
                       {"tokens_per_second", static_cast<double>(tokens) / time},
                       {"prompt_tokens", prompts},
                       {"output_tokens", tokens},
                       {"total_tokens_per_second", static_cast<double>(tokens + prompts) / time},
                       {"requests_per_second", static_cast<double>(good) / time},
                       {"ttft_seconds", spread(first)},
                       {"tpot_seconds", spread(each)},
                       {"itl_seconds", spread(gaps)},
                       {"e2e_seconds", spread(total)}};
  options.json ? fmt::print("{}\n", dump(report)) : print_report(report);
  if (good == 0) fail(ErrorCode::kIo, "no request to {} got an answer", options.url);
}

}  // namespace

void add_bench_serve(CLI::App& bench_app, Action& action) {
  CLI::App* command =
      bench_app.add_subcommand("serve", "Load a server: latencies and tokens per second");
  auto options = std::make_shared<LoadOptions>();
  command->footer(
      "Example: dsv4 bench serve http://127.0.0.1:8000 --clients 16 --requests 200\n"
      "         dsv4 bench serve --prompt-tokens 8192 --vocabulary 129280 --tokens 1024 --clients "
      "64\n"
      "Requests are streamed completions of random words or ids that run to --tokens.");
  command->add_option("URL", options->url, "server")->capture_default_str();
  command->add_option("--model", options->model, "model name; default: the server's own");
  command->add_option("--key", options->key, "API key");
  command->add_option("--requests", options->requests, "requests in all")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--clients", options->clients, "requests at a time")
      ->check(integer_in(1, 4096))
      ->capture_default_str();
  command->add_option("--rate", options->rate, "requests a second at random, instead of --clients")
      ->check(number_in(0, 1e6));
  command->add_option("--prompt-words", options->prompt_words, "random words of each prompt")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  CLI::Option* prompt = command
                            ->add_option("--prompt-tokens", options->prompt_tokens,
                                         "random token ids of each prompt, instead of words")
                            ->check(integer_in(1, 1 << 24));
  command
      ->add_option("--vocabulary", options->vocabulary, "--prompt-tokens: ids are less than this")
      ->check(integer_in(16, 1 << 24))
      ->needs(prompt)
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "tokens of each answer")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the prompts")
      ->check(seed_number())
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &action] { action = [options] { bench_server(*options); }; });
}

}  // namespace dsv4::apps
