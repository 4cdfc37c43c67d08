// Runs a committed corpus through its fuzzer without libFuzzer: every file, every truncation of it,
// and every single byte replaced by a few others. Passing means that nothing but Error(kBadInput)
// was thrown; build with the asan preset to detect memory errors too.

#include <gtest/gtest.h>

#include <filesystem>

#include "dsv4/base/mapped_file.h"
#include "fuzz/fuzz.h"

namespace dsv4 {
namespace {

void run(const std::string& input) {
  // A heap copy of the exact size, so that AddressSanitizer detects a read one byte past the end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

TEST(Replay, CorpusAndItsNeighbors) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DSV4_CORPUS)) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::string input = read_text_file(entry.path().string());
    ++files;
    ASSERT_NO_THROW(run(input));
    for (size_t length = 0; length < input.size(); ++length)
      ASSERT_NO_THROW(run(input.substr(0, length))) << "truncated to " << length << " bytes";
    for (size_t at = 0; at < input.size(); ++at) {
      for (const char byte : {'\0', '\xff', '"', '9', '[', '}'}) {
        std::string changed = input;
        changed[at] = byte;
        ASSERT_NO_THROW(run(changed)) << "byte " << at << " set to " << static_cast<int>(byte);
      }
    }
  }
  RecordProperty("inputs", files);
  EXPECT_GT(files, 0) << "no corpus in " << DSV4_CORPUS;
}

}  // namespace
}  // namespace dsv4
