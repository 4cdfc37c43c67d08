// dsv4 serve as a process: what its signals do, and a log that stalls or ends.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/cli.h"
#include "tests/server/http_client.h"

namespace dsv4 {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::ask;
using Clock = std::chrono::steady_clock;

// A server whose standard error is a pipe of two pages.
class ServerProcess {
 public:
  explicit ServerProcess(const std::string& script, const std::string& drain_seconds = "60") {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    fcntl(ends[1], F_SETPIPE_SZ, 8192);
    log_ = ends[0];
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      const std::string engine = "script:" + script;
      execl(DSV4_BINARY, DSV4_BINARY, "serve", "demo", "--port", "0", "--engine", engine.c_str(),
            "--drain-s", drain_seconds.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(ends[1]);
    std::string log;
    while (log.find("\"ready\"") == log.npos && read_log(log)) {
    }
    const size_t at = log.find("\"port\":");
    if (at != log.npos) port_ = static_cast<uint16_t>(std::stoi(log.substr(at + 7)));
  }
  ~ServerProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    leave_log();
  }

  uint16_t port() const { return port_; }
  void signal(int number) const { kill(pid_, number); }
  // Appends what the log has; false at its end, or where nothing comes.
  bool read_log(std::string& log) const {
    pollfd readable{log_, POLLIN, 0};
    if (poll(&readable, 1, 30'000) != 1) return false;
    char buffer[1 << 16];
    const ssize_t size = read(log_, buffer, sizeof buffer);
    if (size <= 0) return false;
    log.append(buffer, static_cast<size_t>(size));
    return true;
  }
  void leave_log() {
    if (log_ >= 0) close(log_);
    log_ = -1;
  }
  bool runs_a_request() const {
    for (const auto end = Clock::now() + seconds(30); Clock::now() < end;) {
      const std::string metrics = ask(port_, "GET", "/metrics").body;
      if (metrics.find("dsv4_requests_running 1\n") != metrics.npos) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  // The exit status as a shell has it; nothing where the process still runs after `time`.
  std::optional<int> wait(milliseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end;) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    return std::nullopt;
  }

 private:
  pid_t pid_ = -1;
  int log_ = -1;
  uint16_t port_ = 0;
};

const char* const kChat = "/v1/chat/completions";
const char* const kBody = R"({"messages": [{"role": "user", "content": "Hi"}]})";

class CliServe : public test::Cli {
 protected:
  std::string script(const std::string& lines) const {
    write("script", lines);
    return path("script");
  }
};

TEST_F(CliServe, RefusesOptionsThatCannotHold) {
  for (const char* origin : {"'*'", "app.example", "https://", "https://app.example/",
                             "'https://*.app.example'", "https://app.example/page"})
    expect_error(std::string("serve demo --cors-origin ") + origin, "want one origin");
  for (const char* host : {"https://app.example", "app.example:80", "'a*.example'", "."})
    expect_error(std::string("serve demo --allowed-host ") + host, "want a name");
  expect_error("serve demo --logprobs-mode cooked", "--logprobs-mode");
  expect_error("serve demo --admin-port 65536", "65536");
  expect_error("serve demo --port 0", "4096 connections need 4160 file descriptors",
               "ulimit -n 100;");
}

TEST_F(CliServe, GoesOnWhenTheReaderOfItsLogLeaves) {
  ServerProcess server(script(R"({"output": "Hello."})"));
  ASSERT_GT(server.port(), 0);
  server.leave_log();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(server.port(), "POST", kChat, kBody).status, 200);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(seconds(20)), 0);
}

TEST_F(CliServe, GoesOnWhenTheReaderOfItsLogStalls) {
  ServerProcess server(script(R"({"output": "Hello."})"));
  ASSERT_GT(server.port(), 0);
  for (int i = 0; i < 60; ++i) {
    test::Socket socket(server.port());
    socket.send(test::request_text("POST", kChat, kBody));
    std::string bytes;
    while (!test::parse_answer(bytes).complete) ASSERT_TRUE(socket.receive(bytes, 10'000)) << i;
  }
  const std::string metrics = ask(server.port(), "GET", "/metrics").body;
  EXPECT_EQ(metrics.find("dsv4_log_lines_lost_total 0\n"), metrics.npos);
  std::string log;
  ASSERT_TRUE(server.read_log(log));
  EXPECT_EQ(ask(server.port(), "POST", kChat, kBody).status, 200);
  ASSERT_TRUE(server.read_log(log));
  EXPECT_NE(log.find("\"event\":\"log_lost\""), log.npos) << log;
}

TEST_F(CliServe, RandomWeightsWantAGpuAndNoModel) {
  expect_error("serve", "serve needs either a model or --synthetic flash|pro");
  expect_error("serve demo --synthetic flash", "serve needs either a model or --synthetic");
  expect_error("serve demo --experts k3", "require --synthetic: demo has fixed formats");
  expect_error("serve --synthetic flash --experts k3-e4m3 --device cpu --port 0",
               "--synthetic generates its weights on a GPU");
  expect_error("serve --synthetic flash --device cuda --disk-cache " + path("cache"),
               "--disk-cache keeps prefixes of a model folder");
}

// Tokens are those of the server's usage, and its times add up.
TEST_F(CliServe, IsMeasuredByTokens) {
  ServerProcess server(script(R"({"output": "Once there was a fisherman.", "step_ms": 5})"));
  ASSERT_GT(server.port(), 0);
  const std::string url = fmt::format("bench serve http://127.0.0.1:{} --json ", server.port());
  const test::CliResult run =
      dsv4(url + "--requests 4 --clients 2 --prompt-tokens 30 --vocabulary 1500 --tokens 16");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto report = nlohmann::json::parse(run.out);
  EXPECT_EQ(report.at("good"), 4);
  EXPECT_EQ(report.at("prompt_tokens"), 4 * 30);
  const int64_t output = report.at("output_tokens");
  EXPECT_GT(output, 4 * 3);
  EXPECT_NEAR(report.at("total_tokens_per_second").get<double>(),
              static_cast<double>(output + 120) / report.at("seconds").get<double>(), 1e-6);
  const auto median = [&](const char* what) { return report.at(what).at("p50").get<double>(); };
  EXPECT_GT(median("tpot_seconds"), 0.004);
  EXPECT_NEAR(
      median("e2e_seconds"),
      median("ttft_seconds") + median("tpot_seconds") * (static_cast<double>(output) / 4 - 1),
      0.5 * median("e2e_seconds"));
  expect_error(url + "--vocabulary 20", "--prompt-tokens");
}

// A step of ten minutes; the first request, the canary, has another line.
const char* const kHungStep = R"({"match": "Hi", "output": "slow ", "step_ms": 600000}
{"output": "Hello."})";

// Neither a long answer nor the step that computes holds the process.
TEST_F(CliServe, ASecondSignalEndsAtOnce) {
  ServerProcess server(script(kHungStep));
  ASSERT_GT(server.port(), 0);
  test::Socket waits(server.port());
  waits.send(test::request_text("POST", kChat, kBody));
  ASSERT_TRUE(server.runs_a_request());
  server.signal(SIGTERM);
  std::string log;
  while (log.find("\"drain\"") == log.npos) ASSERT_TRUE(server.read_log(log));
  EXPECT_EQ(server.wait(milliseconds(300)), std::nullopt) << "one signal lets the request finish";
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(seconds(5)), 128 + SIGTERM);
}

// The time for running requests is over, they have had their errors, and nothing is left to do but
// to wait for the step.
TEST_F(CliServe, ASignalAfterTheDrainEndsAHungStep) {
  ServerProcess server(script(kHungStep), "0");
  ASSERT_GT(server.port(), 0);
  test::Socket waits(server.port());
  waits.send(test::request_text("POST", kChat, kBody, "Connection: close\r\n"));
  ASSERT_TRUE(server.runs_a_request());
  server.signal(SIGTERM);
  EXPECT_EQ(test::parse_answer(waits.receive_all(30'000)).status, 503);
  EXPECT_EQ(server.wait(seconds(1)), std::nullopt) << "one signal waits for the step";
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(seconds(5)), 128 + SIGTERM);
}

}  // namespace
}  // namespace dsv4
