// Bodies that wait for a worker thread: as many at a time as threads are set aside for this kind of
// work, the next one by fair shares of the clients (job_queue.h), in which a body costs its bytes.
// A client that sends long texts waits for its own, and others pass it. Of several threads, one is
// always left to bodies of less than a MiB. Lives on the I/O thread.

#pragma once

#include <map>

#include "dsv4/server/http.h"
#include "dsv4/server/job_queue.h"

namespace dsv4 {

class WorkQueue {
 public:
  struct Item {
    std::string client;
    size_t bytes = 0;
    std::function<void()> work;  // on a worker thread; throws nothing
    std::function<void()> done;  // then, on the I/O thread
  };

  // `at_once`: how many run; `most`: how many run or wait.
  WorkQueue(HttpThreads& threads, size_t at_once, size_t most)
      : threads_(threads), at_once_(at_once), most_(most) {}

  // False: there is no room for this client's item.
  bool post(Item item);
  size_t size() const { return running_ + waiting_.size(); }
  bool full() const { return size() >= most_; }
  // Seconds that the one which has waited longest has waited; 0: none waits.
  double longest_wait() const;

 private:
  void run_next();

  HttpThreads& threads_;
  const size_t at_once_, most_;
  JobQueue order_;
  std::map<uint64_t, Item> waiting_;  // those in order_
  size_t running_ = 0, large_ = 0;    // large_: of those that run
  uint64_t next_ = 1;
};

}  // namespace dsv4
