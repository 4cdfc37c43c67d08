#include "dsv4/comm/rank_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

void watch(std::vector<pollfd> all, const std::function<void()>& ended) {
  for (;;) {
    if (poll(all.data(), all.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return ended();  // nothing can be noticed any more
    }
    if (all.front().revents != 0) return;
    for (const pollfd& socket : all)
      if (socket.revents != 0) return ended();
  }
}

}  // namespace

RankWatch::RankWatch(std::vector<int> descriptors, std::function<void()> ended)
    : stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_ < 0)
    fail(ErrorCode::kIo, "no event to end a thread by: {}", std::generic_category().message(errno));
  std::vector<pollfd> all = {{.fd = stop_, .events = POLLIN, .revents = 0}};
  for (const int descriptor : descriptors)
    all.push_back({.fd = descriptor, .events = POLLRDHUP, .revents = 0});
  thread_ = std::thread(watch, std::move(all), std::move(ended));
}

RankWatch::~RankWatch() {
  eventfd_write(stop_, 1);
  thread_.join();
  close(stop_);
}

}  // namespace dsv4
