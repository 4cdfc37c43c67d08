#include "dsv4/chat/prompt.h"

#include <algorithm>

#include "dsv4/text/text_encoder.h"

namespace dsv4 {

const char* name(OutputStage stage) {
  switch (stage) {
    case OutputStage::kReason:
      return "reason";
    case OutputStage::kContent:
      return "content";
    case OutputStage::kBlock:
      return "block";
  }
  return "?";
}

void Prompt::add(Marker marker) {
  pieces_.push_back({.marker = marker});
}

void Prompt::add_text(std::string_view text) {
  if (text.empty()) return;
  const bool joins = !pieces_.empty() && !pieces_.back().marker && pieces_.back().ids.empty();
  if (!joins) pieces_.emplace_back();
  pieces_.back().text += text;
}

void Prompt::add_template(std::string_view text) {
  MarkerScanner scanner;
  const auto on_text = [this](std::string_view plain) { add_text(plain); };
  const auto on_marker = [this](Marker marker) { add(marker); };
  scanner.push(text, on_text, on_marker);
  scanner.finish(on_text, on_marker);
}

void Prompt::add_ids(std::string text, std::vector<int32_t> ids) {
  if (ids.empty()) return;
  pieces_.push_back({.text = std::move(text), .ids = std::move(ids)});
}

std::string Prompt::text() const {
  std::string out;
  for (const PromptPiece& piece : pieces_)
    out += piece.marker ? spelling(*piece.marker) : std::string_view(piece.text);
  return out;
}

std::vector<std::pair<int64_t, int64_t>> Prompt::marker_spans() const {
  const auto code_points = [](std::string_view text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  };
  std::vector<std::pair<int64_t, int64_t>> spans;
  int64_t at = 0;
  for (const PromptPiece& piece : pieces_) {
    const int64_t size = code_points(piece.marker ? spelling(*piece.marker) : piece.text);
    if (piece.marker) spans.emplace_back(at, at + size);
    at += size;
  }
  return spans;
}

std::vector<int32_t> encode(const Prompt& prompt, const MarkerIds& markers,
                            const TextEncoder& text) {
  std::vector<int32_t> ids;
  for (const PromptPiece& piece : prompt.pieces()) {
    if (piece.marker) {
      ids.push_back(markers.require(*piece.marker));
    } else if (!piece.ids.empty()) {
      ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
    } else {
      text.encode(piece.text, ids);
    }
  }
  return ids;
}

}  // namespace dsv4
