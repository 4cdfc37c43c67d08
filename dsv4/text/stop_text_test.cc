#include "dsv4/text/stop_text.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

std::string through(StopText& stop, const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += stop.push(piece);
  return out + stop.finish();
}

TEST(StopText, CutsAtTheFirstStop) {
  StopText stop({"END", "\n\n"});
  EXPECT_EQ(through(stop, {"one E", "N", "D two\n\n"}), "one ");
  EXPECT_TRUE(stop.found());
}

TEST(StopText, HoldsBackOnlyWhatMayBecomeAStop) {
  StopText stop({"stop"});
  EXPECT_EQ(stop.push("a st"), "a ");
  EXPECT_EQ(stop.push("ar"), "star");
  EXPECT_EQ(stop.push("s"), "");
  EXPECT_EQ(stop.finish(), "s");
  EXPECT_FALSE(stop.found());
}

TEST(StopText, OverlappingBeginnings) {
  StopText stop({"aab"});
  EXPECT_EQ(through(stop, {"aa", "ab"}), "a");
  EXPECT_TRUE(stop.found());
}

TEST(StopText, WithoutStopsNothingIsHeldBack) {
  StopText stop({""});
  EXPECT_EQ(stop.push("anything"), "anything");
}

TEST(StopText, AnyPiecesGiveTheSameText) {
  Rng rng(3);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 24; ++i) text += static_cast<char>('a' + rng.below(2));
    const std::vector<std::string> stops = {"abba", "bbb", "aabab"};
    size_t end = text.npos;
    for (const std::string& one : stops) end = std::min(end, text.find(one));
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const auto size = static_cast<size_t>(1 + rng.below(5));
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    StopText stop(stops);
    EXPECT_EQ(through(stop, pieces), text.substr(0, end)) << text;
    EXPECT_EQ(stop.found(), end != text.npos);
  }
}

}  // namespace
}  // namespace dsv4
