#include "dsv4/server/job_queue.h"

#include <gtest/gtest.h>

#include <set>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

using std::chrono::seconds;

const JobQueue::Time kStart{};

std::vector<uint64_t> drain(JobQueue& queue, JobQueue::Time now = kStart) {
  std::vector<uint64_t> order;
  while (const auto id = queue.pop(now)) order.push_back(*id);
  return order;
}

TEST(JobQueue, EqualRequestsKeepTheirOrder) {
  JobQueue queue;
  for (const uint64_t id : {5, 3, 4}) queue.push({.id = id, .prompt_tokens = 10}, kStart);
  EXPECT_EQ(drain(queue), (std::vector<uint64_t>{5, 3, 4}));
  EXPECT_FALSE(queue.pop(kStart));
}

TEST(JobQueue, PriorityGoesFirstAndWaitingRaisesIt) {
  JobQueue queue;
  queue.push({.id = 1, .priority = -2}, kStart);
  queue.push({.id = 2, .priority = 0}, kStart + seconds(50));
  queue.push({.id = 3, .priority = 1}, kStart + seconds(50));
  EXPECT_EQ(queue.pop(kStart + seconds(51)), 3u);
  EXPECT_EQ(queue.pop(kStart + seconds(59)), 2u);
  queue.push({.id = 4, .priority = 0}, kStart + seconds(95));
  EXPECT_EQ(queue.pop(kStart + seconds(95)), 1u) << "95 s raised it to 1";
}

// A key with many requests, or with long ones, does not delay that of another key by more than one.
TEST(JobQueue, KeysShareFairly) {
  JobQueue queue;
  for (uint64_t id = 0; id < 10; ++id)
    queue.push({.id = id, .key = "many", .prompt_tokens = 100}, kStart);
  queue.push({.id = 100, .key = "one", .prompt_tokens = 100}, kStart);
  const std::vector<uint64_t> order = drain(queue);
  EXPECT_LE(std::find(order.begin(), order.end(), 100u) - order.begin(), 1);

  for (uint64_t id = 0; id < 6; ++id) {
    queue.push({.id = id, .key = "long", .prompt_tokens = 900}, kStart);
    queue.push({.id = 100 + id, .key = "short", .prompt_tokens = 300}, kStart);
  }
  int64_t taken_short = 0;
  for (int i = 0; i < 8; ++i) taken_short += *queue.pop(kStart) >= 100 ? 1 : 0;
  EXPECT_EQ(taken_short, 6) << "three of 300 tokens for one of 900";
}

// A request of many jobs beside one of one: half of the places, and one stays free for the next.
TEST(JobQueue, OneRequestLeavesPlaces) {
  JobQueue queue;
  JobQueue::Places places{.count = 16};
  const auto begin = [&]() -> std::string {
    size_t running = 0;
    for (const auto& [request, taken] : places.taken) running += taken;
    const auto id = running == places.count ? std::nullopt : queue.pop(kStart, places);
    const std::string request = !id ? "" : *id < 128 ? "many" : "one";
    if (id) ++places.taken[request];
    return request;
  };
  for (uint64_t id = 0; id < 128; ++id) queue.push({.id = id, .request = "many"}, kStart);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(begin(), "many") << i;
  EXPECT_EQ(begin(), "");
  queue.push({.id = 128, .request = "one"}, kStart);
  EXPECT_EQ(begin(), "one");
  places.taken["many"] -= 1;
  queue.push({.id = 129, .request = "one"}, kStart);
  EXPECT_EQ(begin(), "one") << "the other one has more than half";
  places.taken["many"] = 8;
  queue.push({.id = 130, .request = "one"}, kStart);
  EXPECT_EQ(begin(), "one");
  EXPECT_EQ(begin(), "many") << "none else waits";
}

// No place stays free while jobs of two requests wait.
TEST(JobQueue, TwoRequestsShareEveryNumberOfPlaces) {
  for (size_t count = 1; count <= 9; ++count) {
    JobQueue queue;
    for (uint64_t id = 0; id < 20; ++id)
      queue.push({.id = id, .request = id < 10 ? "a" : "b"}, kStart);
    JobQueue::Places places{.count = count};
    for (size_t i = 0; i < count; ++i) {
      const auto id = queue.pop(kStart, places);
      ASSERT_TRUE(id) << i << " of " << count;
      ++places.taken[*id < 10 ? "a" : "b"];
    }
    EXPECT_LE(places.taken["a"], (count + 1) / 2);
  }
}

// Property of random traces: every request leaves once, and none waits for more than the requests
// that were there before it and those of half a minute per class.
TEST(JobQueue, NothingStarves) {
  Rng rng(1);
  for (int trace = 0; trace < 50; ++trace) {
    JobQueue queue;
    std::map<uint64_t, int64_t> pushed;  // second of arrival
    std::set<uint64_t> gone;
    uint64_t next = 1;
    for (int64_t second = 0; second < 3000; ++second) {
      const auto now = kStart + seconds(second);
      // As many arrive as leave, most of them with a high priority.
      if (second < 2000) {
        const int priority = rng.below(10) == 0 ? -2 : 2;
        queue.push({.id = next,
                    .key = std::to_string(rng.below(4)),
                    .priority = priority,
                    .prompt_tokens = 1 + rng.below(5000),
                    .answer_tokens = rng.below(5000)},
                   now);
        pushed[next++] = second;
      }
      if (rng.below(20) == 0 && next > 1) {
        const auto id = 1 + static_cast<uint64_t>(rng.below(static_cast<int64_t>(next) - 1));
        EXPECT_EQ(queue.erase(id), !gone.contains(id));
        gone.insert(id);
      }
      if (second % 20 == 0) continue;  // the queue grows
      const auto id = queue.pop(now);
      if (!id) continue;
      EXPECT_TRUE(gone.insert(*id).second) << "left twice";
      EXPECT_LE(second - pushed.at(*id), 5 * 30 + 120);
    }
    EXPECT_EQ(queue.size(), 0u);
    EXPECT_EQ(gone.size(), pushed.size());
  }
}

}  // namespace
}  // namespace dsv4
