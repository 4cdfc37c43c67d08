#include "dsv4/text/pre_tokenizer.h"

namespace dsv4 {

PreTokenizer::PreTokenizer(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) steps_.emplace_back(pattern);
}

void PreTokenizer::split(std::string_view text, Regex::Scratch& scratch,
                         std::vector<std::string_view>& pieces) const {
  split_from(0, text, scratch, pieces);
}

void PreTokenizer::split_from(size_t step, std::string_view text, Regex::Scratch& scratch,
                              std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  if (step == steps_.size()) {
    pieces.push_back(text);
    return;
  }
  size_t done = 0;
  while (done < text.size()) {
    const auto match = steps_[step].find(text, done, scratch);
    if (!match) break;
    split_from(step + 1, text.substr(done, match->begin - done), scratch, pieces);
    split_from(step + 1, text.substr(match->begin, match->end - match->begin), scratch, pieces);
    done = match->end;
  }
  split_from(step + 1, text.substr(done), scratch, pieces);
}

}  // namespace dsv4
