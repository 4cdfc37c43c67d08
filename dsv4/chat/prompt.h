// Prompt: what a conversation becomes before it is tokenized, a list of pieces that are either a
// marker (one id) or text.
//
// Text is tokenized without the added vocabulary, so that what a client typed never becomes a
// marker even if it spells one. Neighboring texts are one piece: where a text was put together does
// not show in the ids.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/chat/markers.h"

namespace dsv4 {

class TextEncoder;

// Where the model's output starts: inside its reasoning, in the answer, or inside a block of tool
// calls that the prompt opened.
enum class OutputStage { kReason, kContent, kBlock };
const char* name(OutputStage stage);

struct PromptPiece {
  std::optional<Marker> marker;
  std::string text;          // without a marker
  std::vector<int32_t> ids;  // of `text`, where the replay map knows them; else empty

  friend bool operator==(const PromptPiece&, const PromptPiece&) = default;
};

class Prompt {
 public:
  void add(Marker marker);
  void add_text(std::string_view text);
  // Text of ours: the markers spelled in it are markers.
  void add_template(std::string_view text);
  // Output of the model that is known token by token.
  void add_ids(std::string text, std::vector<int32_t> ids);

  const std::vector<PromptPiece>& pieces() const { return pieces_; }
  // The whole prompt with every marker spelled out.
  std::string text() const;
  // [from, to) of every marker in text(), in code points.
  std::vector<std::pair<int64_t, int64_t>> marker_spans() const;

  OutputStage stage = OutputStage::kContent;
  bool continues = false;  // the output goes on with text that the client gave

 private:
  std::vector<PromptPiece> pieces_;
};

// RequestError where the model lacks a marker.
std::vector<int32_t> encode(const Prompt& prompt, const MarkerIds& markers,
                            const TextEncoder& text);

}  // namespace dsv4
