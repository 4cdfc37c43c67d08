#include "dsv4/chat/markers.h"

#include "dsv4/chat/request_error.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4 {
namespace {

// In the order of Marker. Bars are U+FF5C, low blocks U+2581.
constexpr std::array<std::string_view, kNumMarkers> kSpellings = {
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜extracted_url｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
};

}  // namespace

std::string_view spelling(Marker marker) {
  return kSpellings[static_cast<size_t>(marker)];
}

MarkerIds::MarkerIds(const Tokenizer& tokenizer) {
  for (size_t i = 0; i < kNumMarkers; ++i) ids_[i] = tokenizer.id(kSpellings[i]);
}

std::optional<Marker> MarkerIds::marker(int32_t id) const {
  for (size_t i = 0; i < kNumMarkers; ++i) {
    if (ids_[i] == id) return static_cast<Marker>(i);
  }
  return std::nullopt;
}

int32_t MarkerIds::require(Marker marker) const {
  if (const auto found = id(marker)) return *found;
  throw RequestError(
      "unsupported_by_model", "",
      fmt::format("this model has no {} token, which this request needs", spelling(marker)));
}

MarkerScanner::Found MarkerScanner::find(std::string_view text, bool end) {
  // Every spelling starts with one of these two bytes.
  constexpr std::string_view kFirst = "<\xef";
  for (size_t at = text.find_first_of(kFirst); at != text.npos;
       at = text.find_first_of(kFirst, at + 1)) {
    const std::string_view rest = text.substr(at);
    for (size_t i = 0; i < kNumMarkers; ++i) {
      if (rest.starts_with(kSpellings[i])) return {at, static_cast<Marker>(i)};
      if (!end && kSpellings[i].starts_with(rest)) return {at, std::nullopt};
    }
  }
  return {text.size(), std::nullopt};
}

}  // namespace dsv4
