#include "dsv4/server/server_log.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <chrono>

#include "dsv4/chat/request_error.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {

void log_line(const char* event, const Json& fields) {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  Json line = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                           fmt::gmtime(std::chrono::system_clock::to_time_t(now)), milliseconds)},
      {"event", event}};
  line.update(fields);
  const std::string text = text_of(line) + "\n";
  // One call for one line, which other threads cannot split. A log that cannot be written must not
  // stop the service.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string short_text(const std::string& text) {
  constexpr size_t kMost = 64;
  std::string out = one_line(text.substr(0, kMost));
  return out.substr(0, valid_utf8_prefix(out));
}

}  // namespace dsv4
