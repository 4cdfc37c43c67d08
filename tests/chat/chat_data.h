// What the tests of the chat encoding share: a tokenizer with every marker, prompts in the notation
// of the specification, random conversations, and outputs that are pushed in any cut.

#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/chat/chat_message.h"
#include "dsv4/chat/fixed_texts.h"
#include "dsv4/chat/output_parser.h"
#include "dsv4/chat/prompt.h"
#include "dsv4/chat/render.h"
#include "dsv4/chat/request.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/text/text_encoder.h"
#include "dsv4/text/utf8.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4::test {

// The 256 bytes, then every marker.
inline const std::string& marker_tokenizer_json() {
  static const std::string text = [] {
    auto json = tiny_tokenizer_json();
    for (size_t i = 0; i < kNumMarkers; ++i) {
      const auto marker = static_cast<Marker>(i);
      json["added_tokens"].push_back(
          {{"id", 256 + i}, {"content", std::string(spelling(marker))}, {"special", true}});
    }
    return json.dump();
  }();
  return text;
}

inline const Tokenizer& marker_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::parse(marker_tokenizer_json(), "test");
  return tokenizer;
}
// The token of a byte: ids are in the order of the byte alphabet's code points, not of the bytes.
inline int32_t byte_token(char byte) {
  static const auto ids = [] {
    std::array<int32_t, 256> table{};
    for (int32_t id = 0; id < 256; ++id)
      table[static_cast<uint8_t>(marker_tokenizer().token_bytes(id)[0])] = id;
    return table;
  }();
  return ids[static_cast<uint8_t>(byte)];
}
inline const TextEncoder& marker_text_encoder() {
  static const TextEncoder text(parse_tokenizer_json(marker_tokenizer_json(), "test"));
  return text;
}
inline const MarkerIds& marker_ids() {
  static const MarkerIds ids(marker_tokenizer());
  return ids;
}

// {NAME} for every marker but DSML, which tags are made of: ◆. Effort texts as {HIGH} and {MAX}.
inline std::string spelled_out(const Prompt& prompt) {
  static const char* const kNames[kNumMarkers] = {
      "{BOS}",   "{EOS}",      "{USER}",   "{ASST}",  "{THINK}",     "{/THINK}",
      "◆",       "{REMINDER}", "{action}", "{query}", "{authority}", "{domain}",
      "{title}", "{read_url}", "{url}",    "{hole}",  "{begin}",     "{end}"};
  std::string out;
  for (const PromptPiece& piece : prompt.pieces()) {
    std::string text = piece.marker ? kNames[static_cast<size_t>(*piece.marker)] : piece.text;
    for (const auto& [fixed, word] :
         {std::pair{kHighEffortText, "{HIGH}"}, std::pair{kMaxEffortText, "{MAX}"}}) {
      if (const size_t at = text.find(fixed); at != text.npos) text.replace(at, fixed.size(), word);
    }
    out += text;
  }
  return out;
}

// `prompt` with {TOOLS} and {/TOOLS} for what stands around the schemas of tools.
inline std::string notation(const Prompt& prompt) {
  static const std::string head = [] {
    Prompt tools;
    tools.add_template(kToolsHead);
    return spelled_out(tools);
  }();
  std::string out = spelled_out(prompt);
  if (const size_t at = out.find(head); at != out.npos) out.replace(at, head.size(), "{TOOLS}");
  if (const size_t at = out.find(kToolsTail); at != out.npos)
    out.replace(at, kToolsTail.size(), "{/TOOLS}");
  return out;
}

inline Conversation read_request(const nlohmann::ordered_json& body,
                                 const ChatOptions& options = {}) {
  return read_chat_request(parse_json(body.dump(), "body"), options);
}

inline std::string rendered(const nlohmann::ordered_json& body, const ChatOptions& options = {}) {
  return notation(render(read_request(body, options)));
}

// An output: text and markers in turn.
using Event = std::variant<std::string, Marker>;
inline std::vector<Event> events_of(std::string_view spelled) {
  std::vector<Event> events;
  MarkerScanner scanner;
  const auto on_text = [&](std::string_view text) { events.emplace_back(std::string(text)); };
  const auto on_marker = [&](Marker marker) { events.emplace_back(marker); };
  scanner.push(spelled, on_text, on_marker);
  scanner.finish(on_text, on_marker);
  return events;
}

struct Parsed {
  std::string reasoning, content;
  std::vector<ChatMessage::Call> calls;
  FinishReason finish = FinishReason::kStop;
  std::optional<std::string> stop_string;

  friend bool operator==(const Parsed&, const Parsed&) = default;
};

inline std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << nlohmann::json{parsed.reasoning, parsed.content, name(parsed.finish)}.dump();
  for (const auto& call : parsed.calls)
    out << " " << call.name << "(" << call.arguments << ")" << (call.complete ? "" : "...");
  return out;
}

inline Parsed parsed_of(OutputParser& parser, const ChatMessage& message, OutputEnd end) {
  const FinishReason reason = parser.finish(end);
  return {message.reasoning, message.content, message.calls, reason, parser.stop_string()};
}

// `cut(n)`: how many of the n bytes that are left to push next.
template <class Cut>
Parsed parse_cut(const std::vector<Event>& events, const ParserOptions& options, OutputEnd end,
                 const Cut& cut) {
  ChatMessage message;
  OutputParser parser(options, message);
  for (const Event& event : events) {
    if (const Marker* marker = std::get_if<Marker>(&event)) {
      parser.marker(*marker);
      continue;
    }
    for (std::string_view text = std::get<std::string>(event); !text.empty();) {
      const size_t size = std::min<size_t>(cut(text.size()), text.size());
      parser.text(text.substr(0, size));
      text.remove_prefix(size);
    }
  }
  return parsed_of(parser, message, end);
}

inline Parsed parse_whole(std::string_view spelled, const ParserOptions& options,
                          OutputEnd end = OutputEnd::kModel) {
  return parse_cut(events_of(spelled), options, end, [](size_t size) { return size; });
}

// Text that tempts every part of the encoder and of the parser.
inline std::string random_text(Rng& rng, int64_t max_words = 4) {
  static const std::vector<std::string> kWords = [] {
    std::vector<std::string> words = {"a",      "Hello world", "\n",        "\n\n",  " ",    "<",
                                      "</",     ">",           "\"",        "\\",    "漢字", "é",
                                      "invoke", "tool_calls",  "\u2028",    "\x01",  "json", "/",
                                      "1.50",   "{\"a\": 1}",  "parameter", "name=", "😀"};
    for (size_t i = 0; i < kNumMarkers; ++i) words.emplace_back(spelling(static_cast<Marker>(i)));
    return words;
  }();
  std::string text;
  for (int64_t n = rng.below(max_words + 1); n > 0; --n)
    text += kWords[static_cast<size_t>(rng.below(static_cast<int64_t>(kWords.size())))];
  return text;
}

inline nlohmann::ordered_json random_value(Rng& rng, int depth = 0) {
  switch (rng.below(depth < 3 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return rng.below(2) == 0;
    case 2:
      return static_cast<int64_t>(rng.bits());
    case 3:
      return rng.normal() * std::pow(10.0, rng.uniform(-30, 30));
    case 4:
    case 5:
      return random_text(rng);
    case 6: {
      auto list = nlohmann::ordered_json::array();
      for (int64_t n = rng.below(4); n > 0; --n) list.push_back(random_value(rng, depth + 1));
      return list;
    }
    default: {
      auto object = nlohmann::ordered_json::object();
      for (int64_t n = rng.below(4); n > 0; --n)
        object[random_text(rng)] = random_value(rng, depth + 1);
      return object;
    }
  }
}

}  // namespace dsv4::test
