#include "dsv4/server/server_log.h"

#include <fmt/chrono.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <mutex>

#include "dsv4/chat/request_error.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

std::mutex mutex;             // one line after the other
int64_t lost = 0;             // of the process
int64_t lost_since_line = 0;  // that no line has reported

std::string line_of(const char* event, const Json& fields) {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  Json line = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                           fmt::gmtime(std::chrono::system_clock::to_time_t(now)), milliseconds)},
      {"event", event}};
  line.update(fields);
  return text_of(line) + "\n";
}

// A pipe that poll() calls writable takes PIPE_BUF bytes, whole and without blocking.
bool write_now(const std::string& text) {
  pollfd standard_error{STDERR_FILENO, POLLOUT, 0};
  if (text.size() > PIPE_BUF || poll(&standard_error, 1, 0) != 1 ||
      (standard_error.revents & (POLLOUT | POLLERR | POLLNVAL)) != POLLOUT)
    return false;
  return ::write(STDERR_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

void log_line(const char* event, const Json& fields) {
  const std::string line = line_of(event, fields);
  const std::lock_guard lock(mutex);
  if (lost_since_line > 0 && write_now(line_of("log_lost", {{"lines", lost_since_line}})))
    lost_since_line = 0;
  if (lost_since_line == 0 && write_now(line)) return;
  ++lost;
  ++lost_since_line;
}

int64_t log_lines_lost() {
  const std::lock_guard lock(mutex);
  return lost;
}

std::string short_text(const std::string& text) {
  constexpr size_t kMost = 64;
  std::string out = one_line(text.substr(0, kMost));
  return out.substr(0, valid_utf8_prefix(out));
}

std::string utc_text(int64_t seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

}  // namespace dsv4
