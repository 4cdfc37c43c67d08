// Every code point against the `tokenizers` package, and texts large enough to expose quadratic
// behavior.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "dsv4/text/tokenizer.h"
#include "dsv4/text/utf8.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

using test::golden_tokenizer;
using test::goldens;

constexpr char32_t kBlock = 0x400;

// The text of block_text() in tools/goldens/make_tokenizer_goldens.py.
std::string block_text(char32_t block) {
  std::string text;
  for (char32_t c = block * kBlock; c < (block + 1) * kBlock; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string one;
    append_utf8(one, c);
    text += "a" + one + "b " + one + one + "1" + one + "!" + one + "\n";
  }
  return text;
}

std::string fnv1a(const std::vector<int32_t>& numbers) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const int32_t number : numbers) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<uint32_t>(number) >> shift) & 0xff)) * 0x100000001b3ull;
    }
  }
  return fmt::format("{:016x}", hash);
}

TEST(TokenizerGolden, EveryCodePoint) {
  const auto& hashes = goldens().at("block_hashes");
  ASSERT_EQ(hashes.size(), 0x110000u / kBlock);
  for (char32_t block = 0; block < hashes.size(); ++block) {
    EXPECT_EQ(fnv1a(test::piece_sizes(block_text(block))), hashes.at(block).get<std::string>())
        << fmt::format("code points from U+{:04X}", static_cast<uint32_t>(block * kBlock));
  }
}

// Each of these takes well under a second; a quadratic step in patterns or merges would take hours.
TEST(Tokenizer, LongRepeatsTakeLinearTime) {
  constexpr size_t kBytes = 1 << 20;
  const std::vector<std::string> units = {
      " ",    "\n",       "\r\n",   " \n", "\t",  "a",       "Z",        "é",
      "漢",   "あ",       "1",      "!",   "!\n", "😀",       "\xcc\x81", std::string(1, '\0'),
      "\xff", "\xe4\xb8", "\u3000", "<",   "<｜", "<think>", "<th>",     " a",
      "ab",   "a1"};
  for (const std::string& unit : units) {
    for (const std::string& tail : {std::string(), std::string("x"), std::string(" ")}) {
      std::string text;
      while (text.size() < kBytes) text += unit;
      text += tail;
      const auto start = std::chrono::steady_clock::now();
      const auto ids = golden_tokenizer().encode(text);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      EXPECT_LT(seconds.count(), 60) << "unit '" << unit << "'";
      EXPECT_EQ(golden_tokenizer().decode(ids), text) << "unit '" << unit << "'";
    }
  }
}

}  // namespace
}  // namespace dsv4
