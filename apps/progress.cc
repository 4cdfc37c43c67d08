#include "apps/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "dsv4/base/env.h"

namespace dsv4::apps {
namespace {

constexpr size_t kLineInLog = 120;

double seconds_between_lines() {
  const std::string text = env("DSV4_PROGRESS_S");
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && seconds >= 0 ? seconds : 10;
}

}  // namespace

Progress::Progress(std::string what, int64_t total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(isatty(STDERR_FILENO) != 0),
      first_s_(terminal_ ? 2 : seconds_between_lines()),
      every_s_(terminal_ ? 0.1 : first_s_),
      begin_(std::chrono::steady_clock::now()) {
}

Progress::~Progress() {
  finish();
}

void Progress::finish() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
  finished_ = true;
}

void Progress::skip(int64_t done) {
  skipped_ = done;
}

namespace {

std::string duration_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 6000) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

// Width of the terminal that stderr is; 80 where it does not say.
size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

// A line that filled the last column would wrap, and \r would return to its last row only.
std::string progress_line(const ProgressState& now, size_t columns) {
  constexpr size_t kLongestBar = 30, kShortestBar = 5;
  const std::string percent = fmt::format("{:3.0f}%", now.share * 100);
  const std::string tail = fmt::format("  {}  {} left", now.rates, now.left);
  const size_t room = columns > 0 ? columns - 1 : 0, fixed = now.what.size() + 4 + percent.size();
  std::string line = now.what + " ";
  if (fixed + kShortestBar + tail.size() <= room) {
    const size_t width = std::min(kLongestBar, room - fixed - tail.size());
    const auto filled = static_cast<size_t>(now.share * static_cast<double>(width));
    line += fmt::format("[{}{}] ", std::string(filled, '#'), std::string(width - filled, '.'));
  }
  line += percent + tail;
  return line.substr(0, room);
}

void Progress::update(int64_t done, const std::string& rates) {
  if (finished_) return;
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> spent = now - begin_, since = now - latest_;
  if (spent.count() < first_s_ || since.count() < every_s_ || done <= skipped_) return;
  latest_ = now;
  const double share = std::clamp(
      static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total_, 1)), 0., 1.);
  const double rate = static_cast<double>(done - skipped_) / spent.count();
  const std::string shown = rates.empty() ? fmt::format("{:.0f} {}/s", rate, unit_) : rates;
  const std::string line =
      progress_line({.what = what_,
                     .share = share,
                     .rates = shown,
                     .left = duration_text(static_cast<double>(total_ - done) / rate)},
                    terminal_ ? terminal_columns() : kLineInLog);
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "dsv4: %s\n", line.c_str());
  std::fflush(stderr);
  drawn_ = terminal_;
}

}  // namespace dsv4::apps
