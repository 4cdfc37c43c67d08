// What a model writes, with markers by their spelling. Two bytes pick the parser's options and the
// cuts. The result does not depend on the cuts, is UTF-8, and finished arguments are one object.

#include "fuzz/fuzz.h"
#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

ParserOptions options_of(uint8_t bits) {
  ParserOptions options{.stage = static_cast<OutputStage>((bits & 3) % 3),
                        .continues = (bits & 4) != 0,
                        .tools = (bits & 8) == 0,
                        .max_calls = bits & 16 ? 1 : 0};
  if (bits & 32) options.stops = {"STOP", "\n\n", "></", "｜"};
  if (bits & 64) {
    options.declared = {{"f", {"a", "b"}}};
    options.types = {
        {"f", {{"a", JsonTypes::kInteger | JsonTypes::kNull}, {"b", JsonTypes::kString}}}};
  }
  return options;
}

void require_utf8(const std::string& text) {
  fuzz::require(valid_utf8_prefix(text) == text.size());
}

void check(std::string_view output, const ParserOptions& options, OutputEnd end, uint64_t seed) {
  const std::vector<test::Event> events = test::events_of(output);
  const test::Parsed whole =
      test::parse_cut(events, options, end, [](size_t size) { return size; });
  const test::Parsed bytes = test::parse_cut(events, options, end, [](size_t) { return 1; });
  Rng rng(seed);
  const test::Parsed random = test::parse_cut(
      events, options, end, [&](size_t) { return static_cast<size_t>(1 + rng.below(9)); });
  fuzz::require(whole == bytes && whole == random);
  require_utf8(whole.reasoning);
  require_utf8(whole.content);
  for (const ChatMessage::Call& call : whole.calls) {
    require_utf8(call.name);
    require_utf8(call.arguments);
    if (call.complete)
      fuzz::require(nlohmann::json::parse(call.arguments, nullptr, false).is_object());
  }
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto end = data[0] & 128 ? dsv4::OutputEnd::kLimit : dsv4::OutputEnd::kModel;
  dsv4::check(dsv4::fuzz::text(data + 2, size - 2), dsv4::options_of(data[0]), end, data[1]);
  return 0;
}
