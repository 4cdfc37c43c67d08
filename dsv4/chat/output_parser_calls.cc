// The block of tool calls: states kBlock to kClose of OutputParser.

#include "dsv4/chat/output_parser.h"

#include <algorithm>

#include "dsv4/chat/tag_words.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxCallBytes = size_t{16} << 20;

bool is_word_char(int symbol) {
  return symbol == '_' || (symbol >= 'a' && symbol <= 'z') || (symbol >= 'A' && symbol <= 'Z');
}

}  // namespace

// False where the symbol cannot belong to the word of a closing tag, which then ends without `>`.
bool OutputParser::add_to_word(Symbol symbol) {
  if (symbol >= kMarker || symbol == '<' || word_.size() >= kMaxTagWord) return false;
  word_ += static_cast<char>(symbol);
  return true;
}

void OutputParser::in_block(Symbol symbol) {
  if (tag_ == Tag::kOpen) return open_in_block(symbol);
  if (tag_ == Tag::kClose) {
    if (symbol == '>') {
      tag_ = Tag::kNone;
      if (is_block_word(word_)) state_ = State::kDone;
    } else if (!add_to_word(symbol)) {
      tag_ = Tag::kNone;
      in_block(symbol);
    }
    return;
  }
  if (read_tag(symbol) || tag_ == Tag::kNone) return;
  tag_ = Tag::kNone;
  in_block(symbol);
}

// After `<` DSML.
void OutputParser::open_in_block(Symbol symbol) {
  if (symbol < kMarker && word_.size() < kMaxTagWord) {
    word_ += static_cast<char>(symbol);
    const CallTag call = match_call_tag(word_);
    if (call == CallTag::kComplete) {
      tag_ = Tag::kNone;
      name_.clear();
      state_ = State::kName;
    }
    if (call != CallTag::kNo) return;
  }
  tag_ = Tag::kNone;
  in_block(symbol);
}

void OutputParser::in_name(Symbol symbol) {
  if (symbol == '"') {
    word_.clear();
    state_ = State::kNameTail;
  } else {
    name_ += spelled(symbol);
    check_size();
  }
}

// Attributes up to `>`, of which only a slash at the end counts.
void OutputParser::in_name_tail(Symbol symbol) {
  if (symbol != '>') {
    word_ = spelled(symbol);
    return;
  }
  const bool empty_call = word_ == "/";
  begin_call();
  if (empty_call) end_call(false);
}

void OutputParser::begin_call() {
  const auto declared = options_.declared.find(name_);
  const bool known = declared != options_.declared.end();
  if (!known && !options_.declared.empty()) ++counts_.unknown;
  const auto types = options_.types.find(name_);
  arguments_.begin_call(known ? &declared->second : nullptr,
                        types == options_.types.end() ? nullptr : &types->second);
  sink_.on_call(name_);
  ++begun_;
  call_open_ = true;
  state_ = State::kArgs;
}

void OutputParser::in_args(Symbol symbol) {
  if (tag_ == Tag::kOpen) return open_in_args(symbol);
  if (tag_ == Tag::kAttributes) return in_attributes(symbol);
  if (tag_ == Tag::kClose) return close_in_args(symbol);
  if (read_tag(symbol)) return;
  if (tag_ != Tag::kNone) {
    arguments_.body_text(take_tag());
    return in_args(symbol);
  }
  arguments_.body_text(spelled(symbol));
  check_size();
}

// After `<` DSML: the word `parameter` or `invoke`.
void OutputParser::open_in_args(Symbol symbol) {
  const std::string_view word = trim_tag(word_);
  const bool word_ends = !is_word_char(symbol) && symbol < kMarker;
  if (word == "parameter" && word_ends) {
    tag_ = Tag::kAttributes;
    word_.clear();
    quote_ = 0;
    return in_attributes(symbol);
  }
  if (word == "invoke" && word_ends) {
    end_call(true);
    if (done()) return;
    tag_ = Tag::kOpen;
    return open_in_block(symbol);
  }
  if (symbol < kMarker && word_.size() < kMaxTagWord) {
    const std::string longer = word_ + static_cast<char>(symbol);
    const size_t begin = std::min(longer.find_first_not_of(" \t\n\r"), longer.size());
    const std::string_view bare = std::string_view(longer).substr(begin);
    if (std::string_view("parameter").starts_with(bare) ||
        std::string_view("invoke").starts_with(bare)) {
      word_ = longer;
      return;
    }
  }
  arguments_.body_text(take_tag());
  in_args(symbol);
}

void OutputParser::in_attributes(Symbol symbol) {
  if (quote_ == 0 && symbol == '>') return begin_value();
  if (quote_ != 0) {
    if (symbol == quote_) quote_ = 0;
  } else if ((symbol == '"' || symbol == '\'') && trim_tag(word_).ends_with('=')) {
    quote_ = static_cast<char>(symbol);
  }
  word_ += spelled(symbol);
  check_size();
}

void OutputParser::begin_value() {
  ParameterAttributes attributes = parse_attributes(word_);
  arguments_.begin_value(std::move(attributes.name), attributes.is_string);
  tag_ = Tag::kNone;
  state_ = State::kValue;
}

// After `</` DSML: any word ends the call.
void OutputParser::close_in_args(Symbol symbol) {
  if (symbol == '>') {
    const bool block = is_block_word(word_);
    end_call(trim_tag(word_) != "invoke");
    if (block) state_ = State::kDone;
  } else if (!add_to_word(symbol)) {
    end_call(true);
    process(symbol);
  }
}

void OutputParser::in_value(Symbol symbol) {
  if (read_tag(symbol)) {
    if (tag_ == Tag::kClose) {
      tag_ = Tag::kNone;
      arguments_.end_value();
      state_ = State::kClose;
    } else if (tag_ == Tag::kOpen) {
      arguments_.value_text(take_tag());
    }
    return;
  }
  if (tag_ != Tag::kNone) {
    arguments_.value_text(take_tag());
    return in_value(symbol);
  }
  arguments_.value_text(spelled(symbol));
  check_size();
}

// The word of the tag that ended a value.
void OutputParser::in_close(Symbol symbol) {
  if (symbol == '>') {
    const bool block = is_block_word(word_);
    if (block || trim_tag(word_) == "invoke") {
      end_call(true);
      if (block) state_ = State::kDone;
    } else {
      state_ = State::kArgs;
    }
  } else if (!add_to_word(symbol)) {
    state_ = State::kArgs;
    process(symbol);
  }
}

void OutputParser::end_call(bool repaired) {
  repaired = arguments_.end_call() || repaired;
  sink_.on_call_end();
  ++counts_.calls;
  if (repaired) ++counts_.repaired;
  call_open_ = false;
  tag_ = Tag::kNone;
  state_ = options_.max_calls > 0 && begun_ >= options_.max_calls ? State::kDone : State::kBlock;
}

// Whatever a model writes must fit into memory.
void OutputParser::check_size() {
  const size_t bytes = name_.size() + word_.size() + (call_open_ ? arguments_.bytes() : 0);
  if (bytes <= kMaxCallBytes) return;
  failed_ = true;
  state_ = State::kDone;
}

}  // namespace dsv4
