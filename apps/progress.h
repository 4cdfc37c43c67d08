// A progress bar, or lines of progress, for work that lasts.

#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dsv4::apps {

// The line of a progress bar, at most columns - 1 long: the bar shrinks and disappears first, then
// the end of the line.
struct ProgressState {
  std::string what;
  double share = 0;  // in [0, 1]
  std::string rates, left;
};
std::string progress_line(const ProgressState& now, size_t columns);

// Progress on stderr of work that lasts. On a terminal: a bar, after two seconds. In a log or a
// pipe: a line every ten seconds, or every DSV4_PROGRESS_S seconds.
class Progress {
 public:
  // `unit` is that of the counted things, for the rate.
  Progress(std::string what, int64_t total, std::string unit = "tok");
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void set_total(int64_t total) { total_ = total; }
  void skip(int64_t done);  // already done before: excluded from the rate
  // `rates` is printed instead of the rate of the counted unit.
  void update(int64_t done, const std::string& rates = "");
  void finish();  // clears the bar; nothing is drawn afterwards

 private:
  std::string what_, unit_;
  int64_t total_, skipped_ = 0;
  bool terminal_, drawn_ = false, finished_ = false;
  double first_s_, every_s_;  // when the first line is due, and how long after it the next
  std::chrono::steady_clock::time_point begin_, latest_;
};

}  // namespace dsv4::apps
