// A chat request from outside, at the level that the first byte picks: API, released encoder, raw
// completion. What is accepted renders to a prompt whose ids are its markers and its bytes.

#include "dsv4/chat/encoder_level.h"
#include "dsv4/chat/render.h"
#include "dsv4/chat/request.h"
#include "fuzz/fuzz.h"
#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

Prompt prompt_of(uint8_t level, const JsonValue& body) {
  const ChatOptions options{
      .profile = level & 4 ? EffortProfile::kOfficial : EffortProfile::kPreview,
      .default_thinking = (level & 8) != 0,
      .lenient_tools = (level & 16) != 0,
      .require_reasoning = (level & 32) != 0};
  switch (level & 3) {
    case 0:
    case 1:
      return render(read_chat_request(body, options));
    case 2:
      return render_encoder_level(body, options);
    default:
      return render_completion(body);
  }
}

void check(const Prompt& prompt) {
  const std::vector<int32_t> ids = encode(prompt, test::marker_ids(), test::marker_text_encoder());
  size_t markers = 0, marker_ids = 0;
  for (const PromptPiece& piece : prompt.pieces()) markers += piece.marker.has_value();
  for (const int32_t id : ids) marker_ids += id >= 256;
  fuzz::require(markers == marker_ids);
  fuzz::require(test::marker_tokenizer().decode(ids) == prompt.text());
  fuzz::require(prompt.marker_spans().size() == markers);
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  dsv4::fuzz::allow_bad_input([&] {
    const dsv4::JsonValue body = dsv4::parse_json(dsv4::fuzz::text(data + 1, size - 1), "input");
    // What was read is written and read again.
    dsv4::fuzz::require(dsv4::parse_json(dsv4::to_json(body), "written") == body);
    dsv4::check(dsv4::prompt_of(data[0], body));
  });
  return 0;
}
