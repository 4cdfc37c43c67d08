#include "dsv4/text/stop_text.h"

#include <algorithm>
#include <utility>

namespace dsv4 {
namespace {

// Bytes at the end of `text` that are the beginning of `stop`, but not all of it.
size_t begun(std::string_view text, std::string_view stop) {
  size_t size = std::min(text.size(), stop.size() - 1);
  while (size > 0 && !text.ends_with(stop.substr(0, size))) --size;
  return size;
}

}  // namespace

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopText::push(std::string_view piece) {
  if (found_) return "";
  pending_ += piece;
  size_t end = pending_.npos, held = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, pending_.find(stop));
    held = std::max(held, begun(pending_, stop));
  }
  found_ = end != pending_.npos;
  const std::string ready = pending_.substr(0, found_ ? end : pending_.size() - held);
  pending_.erase(0, found_ ? pending_.npos : ready.size());
  return ready;
}

std::string StopText::finish() {
  return std::exchange(pending_, "");
}

}  // namespace dsv4
