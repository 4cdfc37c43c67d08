// Markers: the added tokens that structure a conversation (docs/spec/serving.md 1.1). A model has
// those whose text is among its tokenizer's added tokens; ids are the tokenizer's own and never
// constants here.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

class Tokenizer;

enum class Marker {
  kBos,
  kEos,
  kUser,
  kAssistant,
  kThink,
  kThinkEnd,
  kDsml,  // no angle brackets: tags are `<` or `</`, this token, text
  kReminder,
  kAction,
  kQuery,
  kAuthority,
  kDomain,
  kTitle,
  kReadUrl,
  kExtractedUrl,
  kFimHole,
  kFimBegin,
  kFimEnd,
};
inline constexpr size_t kNumMarkers = 18;

std::string_view spelling(Marker marker);

class MarkerIds {
 public:
  explicit MarkerIds(const Tokenizer& tokenizer);

  std::optional<int32_t> id(Marker marker) const { return ids_[static_cast<size_t>(marker)]; }
  std::optional<Marker> marker(int32_t id) const;
  // RequestError where the model has no such token.
  int32_t require(Marker marker) const;

 private:
  std::array<std::optional<int32_t>, kNumMarkers> ids_;
};

// Finds spelled markers in text that arrives in pieces. For text that is trusted to mean them: raw
// prompts, and output that is given as text.
class MarkerScanner {
 public:
  // on_text(std::string_view), on_marker(Marker); text that could still become a marker is held.
  template <class OnText, class OnMarker>
  void push(std::string_view piece, const OnText& on_text, const OnMarker& on_marker) {
    held_ += piece;
    scan(false, on_text, on_marker);
  }
  template <class OnText, class OnMarker>
  void finish(const OnText& on_text, const OnMarker& on_marker) {
    scan(true, on_text, on_marker);
  }

 private:
  // Plain bytes at the front, and the marker that follows them, if one is complete.
  struct Found {
    size_t plain;
    std::optional<Marker> marker;
  };
  static Found find(std::string_view text, bool end);

  template <class OnText, class OnMarker>
  void scan(bool end, const OnText& on_text, const OnMarker& on_marker) {
    std::string_view rest = held_;
    for (;;) {
      const Found found = find(rest, end);
      if (found.plain > 0) on_text(rest.substr(0, found.plain));
      rest.remove_prefix(found.plain);
      if (!found.marker) break;
      rest.remove_prefix(spelling(*found.marker).size());
      on_marker(*found.marker);
    }
    held_ = std::string(rest);
  }

  std::string held_;
};

}  // namespace dsv4
