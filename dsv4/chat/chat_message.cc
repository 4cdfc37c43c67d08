#include "dsv4/chat/chat_message.h"

#include <openssl/rand.h>

#include <array>

#include "dsv4/base/error.h"

namespace dsv4 {

using Json = nlohmann::ordered_json;

ChatTurn turn_of(const ChatMessage& message) {
  ChatTurn turn{.kind = ChatTurn::Kind::kAssistant,
                .text = message.content,
                .reasoning = message.reasoning,
                .calls = {}};
  for (const ChatMessage::Call& call : message.calls) {
    turn.calls.push_back({.id = "",
                          .name = call.name,
                          .arguments = parse_json(call.arguments, "arguments of a finished call")});
  }
  return turn;
}

std::string random_call_id() {
  return random_id("call_");
}

std::string random_id(std::string_view prefix) {
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr size_t kLength = 24;
  std::string id(prefix);
  const size_t size = prefix.size() + kLength;
  while (id.size() < size) {
    std::array<unsigned char, 2 * kLength> bytes;
    if (RAND_bytes(bytes.data(), bytes.size()) != 1)
      fail(ErrorCode::kResource, "libcrypto has no random numbers");
    // 248 = 4 x 62: every letter is equally likely.
    for (const unsigned char byte : bytes) {
      if (byte < 248 && id.size() < size) id += kLetters[byte % kLetters.size()];
    }
  }
  return id;
}

Json message_json(const ChatMessage& message, const std::function<std::string()>& new_id) {
  Json json = {{"role", "assistant"}};
  const bool null_content = message.content.empty() && !message.calls.empty();
  json["content"] = null_content ? Json() : Json(message.content);
  if (!message.reasoning.empty()) json["reasoning_content"] = message.reasoning;
  for (const ChatMessage::Call& call : message.calls) {
    json["tool_calls"].push_back(
        {{"id", new_id()},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return json;
}

void ChatDeltas::on_reasoning(std::string_view text) {
  deltas_.push_back({{"reasoning_content", text}});
}

void ChatDeltas::on_content(std::string_view text) {
  deltas_.push_back({{"content", text}});
}

void ChatDeltas::on_call(const std::string& name) {
  const Json call = {{"index", calls_++},
                     {"id", new_id_()},
                     {"type", "function"},
                     {"function", {{"name", name}, {"arguments", ""}}}};
  deltas_.push_back({{"tool_calls", Json::array({call})}});
}

void ChatDeltas::on_arguments(std::string_view json) {
  const Json call = {{"index", calls_ - 1}, {"function", {{"arguments", json}}}};
  deltas_.push_back({{"tool_calls", Json::array({call})}});
}

}  // namespace dsv4
