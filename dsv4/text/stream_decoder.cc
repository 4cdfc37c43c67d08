#include "dsv4/text/stream_decoder.h"

#include "dsv4/text/utf8.h"

namespace dsv4 {

std::string StreamDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return "";
  pending_ += tokenizer_->token_bytes(id);
  std::string_view rest = pending_;
  std::string out;
  while (!rest.empty()) {
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Kind::kIncomplete) break;
    const auto size = static_cast<size_t>(unit.size);
    out += unit.kind == Utf8Kind::kValid ? rest.substr(0, size) : kReplacementCharacter;
    rest.remove_prefix(size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string StreamDecoder::finish() {
  const bool held_back = !pending_.empty();
  pending_.clear();
  return held_back ? std::string(kReplacementCharacter) : std::string();
}

}  // namespace dsv4
