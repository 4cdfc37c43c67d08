// WorkQueue over threads that run what they get when the test says so.

#include "dsv4/server/work_queue.h"

#include <gtest/gtest.h>

#include <deque>

namespace dsv4 {
namespace {

class ManualThreads : public HttpThreads {
 public:
  void post_io(std::function<void()> work) override { io_.push_back(std::move(work)); }
  void post_worker(std::function<void()> work) override { workers_.push_back(std::move(work)); }

  size_t started() const { return workers_.size(); }
  bool run_one() {
    if (workers_.empty()) return false;
    run_first(workers_);
    run_first(io_);
    return true;
  }

 private:
  static void run_first(std::deque<std::function<void()>>& list) {
    const std::function<void()> work = std::move(list.front());
    list.pop_front();
    work();
  }
  std::deque<std::function<void()>> io_, workers_;
};

struct Trace {
  WorkQueue::Item item(const std::string& client, size_t bytes) {
    return {.client = client,
            .bytes = bytes,
            .work = [this, client] { order += client; },
            .done = [this] { ++done; }};
  }
  std::string order;
  int done = 0;
};

// What comes first of a client that has waited less does not wait for all bodies of the other one.
TEST(WorkQueue, LongBodiesOfOneClientAreNotBeforeThoseOfOthers) {
  ManualThreads threads;
  WorkQueue queue(threads, 1, 100);
  Trace trace;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(queue.post(trace.item("A", 16 << 20)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.post(trace.item("b", 1000)));
  while (threads.run_one()) {
  }
  EXPECT_EQ(trace.order, "AbbbAAAAA");
  EXPECT_EQ(trace.done, 9);
  EXPECT_EQ(queue.size(), 0u);
}

// However many large ones came first, and of clients that cannot be distinguished.
TEST(WorkQueue, LargeBodiesLeaveAWorker) {
  ManualThreads threads;
  WorkQueue queue(threads, 2, 100);
  Trace trace;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.post(trace.item("", 12 << 20)));
  EXPECT_EQ(threads.started(), 1u);
  EXPECT_TRUE(queue.post(trace.item("", 1000)));
  EXPECT_EQ(threads.started(), 2u) << "the small one runs at once";
  while (threads.run_one()) EXPECT_LE(threads.started(), 2u);
  EXPECT_EQ(trace.done, 5);
}

TEST(WorkQueue, SoManyRunAtOnce) {
  ManualThreads threads;
  WorkQueue queue(threads, 2, 100);
  Trace trace;
  for (int i = 0; i < 5; ++i) queue.post(trace.item("A", 1));
  EXPECT_EQ(threads.started(), 2u);
  EXPECT_GT(queue.longest_wait(), 0.0);
  threads.run_one();
  EXPECT_EQ(threads.started(), 2u);
  EXPECT_EQ(queue.size(), 4u);
  while (threads.run_one()) {
  }
  EXPECT_EQ(queue.longest_wait(), 0.0);
}

TEST(WorkQueue, OneClientDoesNotFillIt) {
  ManualThreads threads;
  WorkQueue queue(threads, 1, 8);
  Trace trace;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(queue.post(trace.item("A", 1))) << i;
  EXPECT_FALSE(queue.post(trace.item("A", 1)));
  EXPECT_TRUE(queue.post(trace.item("b", 1)));
  EXPECT_TRUE(queue.post(trace.item("b", 1)));
  EXPECT_TRUE(queue.full());
  EXPECT_FALSE(queue.post(trace.item("c", 1)));
}

}  // namespace
}  // namespace dsv4
