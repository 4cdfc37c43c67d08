// Notices that another rank has ended while this one waits for its GPU, where no call reads the
// sockets: a thread that asks the system for the ends of sockets and for nothing else.

#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace dsv4 {

class RankWatch {
 public:
  // descriptors: of sockets, which outlive this object. ended(): called once, by the thread, when
  // the other end of one of them has been closed or sends nothing more, or cannot be watched.
  RankWatch(std::vector<int> descriptors, std::function<void()> ended);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

 private:
  int stop_ = -1;  // an event of the system
  std::thread thread_;
};

}  // namespace dsv4
