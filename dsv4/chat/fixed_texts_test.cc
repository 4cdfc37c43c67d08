// The texts are what the models were trained with, byte for byte.

#include "dsv4/chat/fixed_texts.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <array>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

std::string sha256(std::string_view text) {
  std::array<unsigned char, 32> digest;
  EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

TEST(FixedTexts, HaveTheHashesOfTheSpecification) {
  const struct {
    std::string_view text;
    size_t bytes;
    const char* hash;
  } kTexts[] = {
      {kHighEffortText, 476, "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"},
      {kMaxEffortText, 528, "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c"},
      {kToolsHead, 890, "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c"},
      {kToolsTail, 99, "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7"},
      {kSchemaHead, 80, "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112"},
  };
  for (const auto& [text, bytes, hash] : kTexts) {
    EXPECT_EQ(text.size(), bytes) << text;
    EXPECT_EQ(sha256(text), hash) << text;
  }
  EXPECT_EQ(kJsonBlock.size(), 102u);
}

}  // namespace
}  // namespace dsv4
