// Time per kernel name, from events around every launch. For looking into a step, not for running
// one: the events keep kernels apart that would otherwise follow each other closely.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "dsv4/device/event.h"

namespace dsv4 {

class KernelTimes {
 public:
  struct Total {
    int64_t launches = 0;
    double seconds = 0;
  };

  // The number of the launch, for end(); launches may contain others.
  size_t begin(const char* name, cudaStream_t stream) {
    if (used_ == marks_.size()) marks_.emplace_back();
    marks_[used_].name = name;
    marks_[used_].begin.record(stream);
    return used_++;
  }
  void end(size_t launch, cudaStream_t stream) { marks_[launch].end.record(stream); }

  // Everything since the last call; the stream must be idle.
  std::map<std::string, Total> take() {
    std::map<std::string, Total> totals;
    for (size_t i = 0; i < used_; ++i) {
      Total& total = totals[marks_[i].name];
      ++total.launches;
      total.seconds += marks_[i].end.seconds_since(marks_[i].begin);
    }
    used_ = 0;
    return totals;
  }

 private:
  struct Mark {
    const char* name = nullptr;
    Event begin, end;
  };
  std::vector<Mark> marks_;  // kept: making events takes longer than most kernels
  size_t used_ = 0;
};

}  // namespace dsv4
