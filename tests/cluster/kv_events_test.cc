// Batches of events as bytes, read back as msgpack, and requests for a replay. The sockets are
// tested with their own client: tools/serve/check_kv_events.py.

#include "apps/kv_events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsv4/base/rng.h"
#include "tests/harness/errors.h"

namespace dsv4::apps {
namespace {

using nlohmann::json;

TEST(KvEvents, HaveTheLayoutOfVllm) {
  const std::vector<BlockEvent> events = {
      {.blocks = {~uint64_t{0}, 7}, .ids = {1, 2, 3, 4}, .step = 2},
      {.tier = CacheTier::kRam, .blocks = {8}, .parent = 7, .ids = {5, 6}, .step = 2},
      {.kind = BlockEvent::Kind::kRemoved, .tier = CacheTier::kDisk, .blocks = {7, 8}},
      {.kind = BlockEvent::Kind::kCleared}};
  const json batch = json::from_msgpack(encode_kv_events(12.5, events));
  const json wanted = {
      12.5,
      {{"BlockStored", {~uint64_t{0}, 7}, nullptr, {1, 2, 3, 4}, 2, nullptr, "GPU", nullptr},
       {"BlockStored", json::array({8}), 7, {5, 6}, 2, nullptr, "CPU", nullptr},
       {"BlockRemoved", {7, 8}, "DISK"},
       json::array({"AllBlocksCleared"})},
      0};
  EXPECT_EQ(batch, wanted);
}

TEST(KvEvents, ATimeKeepsItsFraction) {
  const double time = 1795533109.123456789;
  EXPECT_EQ(json::from_msgpack(encode_kv_events(time, {}))[0].get<double>(), time);
}

TEST(KvEvents, ReplaysAreAskedForByANumber) {
  const std::string eight("\x00\x00\x00\x00\x00\x00\x01\x02", 8);
  EXPECT_EQ(replay_start({"client", "", eight}), 0x102u);
  EXPECT_EQ(replay_start({"", "", std::string(8, '\xff')}), ~uint64_t{0});
  EXPECT_FALSE(replay_start({}));
  EXPECT_FALSE(replay_start({"client", eight}));
  EXPECT_FALSE(replay_start({"client", "x", eight}));
  EXPECT_FALSE(replay_start({"client", "", eight, ""}));
  EXPECT_FALSE(replay_start({"client", "", eight + "0"}));
  EXPECT_FALSE(replay_start({"client", "", "1234567"}));
}

// Frames of all numbers and lengths: a number comes of those that are a request, and nothing else.
TEST(KvEvents, HostileFrames) {
  Rng rng(1);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::string> frames(static_cast<size_t>(rng.below(6)));
    for (std::string& frame : frames) {
      frame.resize(static_cast<size_t>(rng.below(3) == 0 ? 8 : rng.below(12)));
      for (char& byte : frame) byte = static_cast<char>(rng.bits());
    }
    const bool is_request = frames.size() == 3 && frames[1].empty() && frames[2].size() == 8;
    EXPECT_EQ(replay_start(frames).has_value(), is_request);
  }
}

TEST(KvEvents, AnEndpointThatCannotBeUsedSaysWhy) {
  try {
    ZmqLibrary::load();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const auto error_of = [](const std::string& endpoint) {
    return test::error_of(ErrorCode::kIo, [&] { KvEventPublisher({.endpoint = endpoint}); });
  };
  for (const char* bad :
       {"", "tcp://nowhere.invalid:1", "5557", "tcp://127.0.0.1:99999", "http://x:1"})
    EXPECT_TRUE(test::says(error_of(bad), "want an endpoint to listen at")) << bad;
  const KvEventPublisher first({.endpoint = "tcp://127.0.0.1:*"});
  EXPECT_TRUE(test::says(error_of(first.endpoint()), "Address already in use"));
}

}  // namespace
}  // namespace dsv4::apps
