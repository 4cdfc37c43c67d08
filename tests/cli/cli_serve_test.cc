// dsv4 serve as a process: what its signals do, and a log that stalls or ends.

#include <fcntl.h>
#include <signal.h>

#include <chrono>
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
  explicit ServerProcess(const std::string& script) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    fcntl(ends[1], F_SETPIPE_SZ, 8192);
    log_ = ends[0];
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      const std::string engine = "script:" + script;
      execl(DSV4_BINARY, DSV4_BINARY, "serve", "demo", "--port", "0", "--engine", engine.c_str(),
            static_cast<char*>(nullptr));
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
  // Appends what the log has; false at its end.
  bool read_log(std::string& log) const {
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

// Neither a long answer nor the step that computes holds the process.
TEST_F(CliServe, ASecondSignalEndsAtOnce) {
  ServerProcess server(script(R"({"match": "Hi", "output": "slow ", "repeat": 1000, "step_ms": 2000}
{"output": "Hello."})"));
  ASSERT_GT(server.port(), 0);
  test::Socket waits(server.port());
  waits.send(test::request_text("POST", kChat, kBody));
  const auto runs = [&] {
    const std::string metrics = ask(server.port(), "GET", "/metrics").body;
    return metrics.find("dsv4_requests_running 1\n") != metrics.npos;
  };
  const auto deadline = std::chrono::steady_clock::now() + seconds(30);
  while (!runs()) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  server.signal(SIGTERM);
  std::string log;
  while (log.find("\"drain\"") == log.npos) ASSERT_TRUE(server.read_log(log));
  EXPECT_EQ(server.wait(milliseconds(300)), std::nullopt) << "one signal lets the request finish";
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(seconds(1)), 128 + SIGTERM);
}

}  // namespace
}  // namespace dsv4
