#include "dsv4/server/seal.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(Seal, OpensWithItsKeyOnly) {
  const std::string key = random_bytes(kSealKeyBytes), other = random_bytes(kSealKeyBytes);
  for (const size_t size : {0, 1, 2, 3, 100, 10'000}) {
    const std::string text(size, 'x'), closed = sealed(key, text);
    EXPECT_EQ(unsealed(key, closed), text) << size;
    EXPECT_FALSE(unsealed(other, closed)) << size;
    EXPECT_NE(sealed(key, text), closed) << "the nonce repeats";
  }
}

TEST(Seal, RefusesWhatWasChanged) {
  const std::string key = random_bytes(kSealKeyBytes);
  const std::string closed = sealed(key, "reasoning that is to stay as it is");
  for (size_t i = 0; i < closed.size(); ++i) {
    std::string changed = closed;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(unsealed(key, changed)) << i;
    EXPECT_FALSE(unsealed(key, closed.substr(0, i))) << i;
  }
  for (const char* text : {"", "a", "====", "not base64!!", "AAAA"})
    EXPECT_FALSE(unsealed(key, text)) << text;
}

}  // namespace
}  // namespace dsv4
