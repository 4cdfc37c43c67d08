// The log on a pipe whose reader stalls or leaves.

#include "dsv4/server/server_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace dsv4 {
namespace {

// Standard error is a pipe of two pages while this lives.
class PipeAsStandardError {
 public:
  PipeAsStandardError() : before_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[1], F_SETPIPE_SZ, 8192);
    dup2(ends_[1], STDERR_FILENO);
    close(ends_[1]);
  }
  ~PipeAsStandardError() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    leave();
  }
  std::string read() {
    char buffer[1 << 16];
    const ssize_t size = ::read(ends_[0], buffer, sizeof buffer);
    return {buffer, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  }
  void leave() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }

 private:
  int ends_[2] = {-1, -1};
  const int before_;
};

TEST(ServerLog, LosesLinesRatherThanBlock) {
  const std::string text(60, 'x');
  int64_t lost = 0;
  std::string before, after;
  {
    PipeAsStandardError reader;
    const int64_t at_start = log_lines_lost();
    alarm(20);  // a line that blocks ends the test
    for (int i = 0; i < 200; ++i) log_line("full", {{"text", text}, {"i", i}});
    alarm(0);
    lost = log_lines_lost() - at_start;
    before = reader.read();
    log_line("after", Json::object());
    after = reader.read();
  }
  EXPECT_GT(lost, 100);
  EXPECT_NE(before.find("\"i\":0"), before.npos) << before;
  EXPECT_TRUE(before.ends_with("}\n")) << "a line is whole or lost";
  EXPECT_NE(after.find("\"event\":\"log_lost\",\"lines\":" + std::to_string(lost)), after.npos)
      << after;
  EXPECT_NE(after.find("\"event\":\"after\""), after.npos) << after;
}

TEST(ServerLog, GoesOnWithoutAReader) {
  std::signal(SIGPIPE, SIG_IGN);  // as the server does
  const int64_t at_start = log_lines_lost();
  {
    PipeAsStandardError reader;
    reader.leave();
    log_line("gone", Json::object());
  }
  EXPECT_EQ(log_lines_lost() - at_start, 1);
  std::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace dsv4
