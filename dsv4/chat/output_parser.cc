// Entry, stop strings, reasoning and content; output_parser_calls.cc has the block of calls.

#include "dsv4/chat/output_parser.h"

#include "dsv4/base/error.h"
#include "dsv4/chat/tag_words.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

std::string OutputParser::spelled(Symbol symbol) {
  if (symbol < kMarker) return std::string(1, static_cast<char>(symbol));
  return std::string(spelling(static_cast<Marker>(symbol - kMarker)));
}

OutputParser::OutputParser(ParserOptions options, OutputSink& sink)
    : options_(std::move(options)),
      sink_(sink),
      stops_(options_.stops),
      leading_(!options_.continues),
      arguments_(sink) {
  for (const std::string& stop : options_.stops) DSV4_CHECK(!stop.empty(), "an empty stop string");
  state_ = options_.stage == OutputStage::kReason    ? State::kReason
           : options_.stage == OutputStage::kContent ? State::kContent
                                                     : State::kBlock;
}

void OutputParser::text(std::string_view bytes) {
  any_input_ = any_input_ || !bytes.empty();
  utf8_ += bytes;
  std::string_view rest = utf8_;
  while (!rest.empty() && !done()) {
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Kind::kIncomplete) break;
    const auto size = static_cast<size_t>(unit.size);
    const std::string_view character =
        unit.kind == Utf8Kind::kValid ? rest.substr(0, size) : kReplacementCharacter;
    for (const char byte : character) accept(static_cast<unsigned char>(byte));
    rest.remove_prefix(size);
  }
  utf8_ = done() ? std::string() : std::string(rest);
  flush();
}

void OutputParser::marker(Marker marker) {
  const bool first = !any_input_;
  any_input_ = true;
  if (!utf8_.empty()) {
    utf8_.clear();
    for (const char byte : kReplacementCharacter) accept(static_cast<unsigned char>(byte));
  }
  // The model repeats the marker that the prompt ended with.
  const bool repeated = first && marker == Marker::kThink && state_ == State::kReason;
  if (!repeated) accept(kMarker + static_cast<int>(marker));
  flush();
}

void OutputParser::accept(Symbol symbol) {
  if (state_ != State::kContent || stops_.empty()) return process(symbol);
  const std::string bytes = spelled(symbol);
  held_.push_back(symbol);
  held_bytes_ += bytes.size();
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (const auto match = stops_.push(bytes[i])) {
      const std::string& stop = stops_.string(*match);
      return stop_before(held_bytes_ - (bytes.size() - 1 - i) - stop.size(), stop);
    }
  }
  while (!held_.empty() && held_bytes_ - spelled(held_.front()).size() >= stops_.held()) {
    if (!release_front()) return;
  }
}

// False where that ended the content: what was held then passes without regard to stop strings.
bool OutputParser::release_front() {
  const Symbol symbol = held_.front();
  held_.pop_front();
  held_bytes_ -= spelled(symbol).size();
  process(symbol);
  if (state_ == State::kContent) return true;
  std::deque<Symbol> rest;
  rest.swap(held_);
  held_bytes_ = 0;
  for (const Symbol next : rest) process(next);
  return false;
}

// The stop string begins after so many of the held bytes.
void OutputParser::stop_before(size_t bytes, const std::string& stop) {
  const size_t left = held_bytes_ - bytes;
  while (!held_.empty() && held_bytes_ - spelled(held_.front()).size() >= left) {
    if (!release_front()) return;
  }
  held_.clear();
  held_bytes_ = 0;
  stop_string_ = stop;
  end_text();
  state_ = State::kDone;
}

void OutputParser::process(Symbol symbol) {
  switch (state_) {
    case State::kReason:
    case State::kContent:
      return in_text(symbol);
    case State::kBlock:
      return in_block(symbol);
    case State::kName:
      return in_name(symbol);
    case State::kNameTail:
      return in_name_tail(symbol);
    case State::kArgs:
      return in_args(symbol);
    case State::kValue:
      return in_value(symbol);
    case State::kClose:
      return in_close(symbol);
    case State::kDone:
      return;
  }
}

// True where the symbol began or continued `<`, `</`, `<` DSML or `</` DSML.
bool OutputParser::read_tag(Symbol symbol) {
  if (tag_ == Tag::kNone && symbol == '<') {
    tag_ = Tag::kLess;
  } else if (tag_ == Tag::kLess && symbol == '/') {
    tag_ = Tag::kSlash;
  } else if ((tag_ == Tag::kLess || tag_ == Tag::kSlash) && symbol == kDsml) {
    tag_ = tag_ == Tag::kLess ? Tag::kOpen : Tag::kClose;
    word_.clear();
  } else {
    return false;
  }
  return true;
}

// What was read of a tag that turned out to be none.
std::string OutputParser::take_tag() {
  const Tag tag = tag_;
  tag_ = Tag::kNone;
  const std::string dsml(spelling(Marker::kDsml));
  switch (tag) {
    case Tag::kNone:
      return "";
    case Tag::kLess:
      return "<";
    case Tag::kSlash:
      return "</";
    case Tag::kOpen:
      return "<" + dsml + word_;
    case Tag::kClose:
      return "</" + dsml + word_;
    case Tag::kAttributes:
      return "<" + dsml + "parameter" + word_;
  }
  return "";
}

void OutputParser::in_text(Symbol symbol) {
  if (tag_ == Tag::kOpen) return open_in_text(symbol);
  if (tag_ == Tag::kClose) {  // dropped up to its end
    if (symbol == '>') tag_ = Tag::kNone;
    return;
  }
  if (options_.tools && read_tag(symbol)) {
    if (tag_ == Tag::kClose && state_ == State::kReason) put_text(take_tag());
    return;
  }
  if (tag_ != Tag::kNone) {
    put_text(take_tag());
    return in_text(symbol);
  }
  if (symbol == '\n') {
    if (!leading_) ++newlines_;
  } else if (symbol == kThinkEnd && state_ == State::kReason) {
    leave_reasoning();
  } else if ((symbol != kThink && symbol != kThinkEnd) || state_ == State::kReason) {
    put_text(spelled(symbol));
  }
}

// After `<` DSML: a block of calls, a call without a block, or text.
void OutputParser::open_in_text(Symbol symbol) {
  if (symbol == '>' && is_block_word(word_)) {
    tag_ = Tag::kNone;
    return enter_block();
  }
  if (symbol < kMarker && word_.size() < kMaxTagWord) {
    const std::string word = word_ + static_cast<char>(symbol);
    const CallTag call = match_call_tag(word);
    if (call != CallTag::kNo || may_become_block_word(word)) {
      word_ = word;
      if (call == CallTag::kNamed) enter_block();
      return;
    }
  }
  put_text(take_tag());
  in_text(symbol);
}

void OutputParser::put_text(std::string_view bytes) {
  out_.append(newlines_, '\n').append(bytes);
  newlines_ = 0;
  leading_ = false;
}

void OutputParser::leave_reasoning() {
  newlines_ = 0;
  flush();
  state_ = State::kContent;
  leading_ = true;
}

// A call's tag that is being read stays so.
void OutputParser::enter_block() {
  newlines_ = 0;
  flush();
  state_ = State::kBlock;
}

void OutputParser::flush() {
  if (!out_.empty()) {
    if (state_ == State::kReason) {
      sink_.on_reasoning(out_);
    } else {
      sink_.on_content(out_);
    }
    out_.clear();
  }
  arguments_.flush();
}

// The end of reasoning or content that no marker ended: what is held is text, but half a tag is
// dropped.
void OutputParser::end_text() {
  const bool half_tag = tag_ == Tag::kOpen || tag_ == Tag::kClose;
  if (half_tag) tag_ = Tag::kNone;
  put_text(take_tag());
  flush();
}

FinishReason OutputParser::finish(OutputEnd end) {
  if (!utf8_.empty()) {
    utf8_.clear();
    for (const char byte : kReplacementCharacter) accept(static_cast<unsigned char>(byte));
  }
  while (!held_.empty()) release_front();
  if (state_ == State::kReason || state_ == State::kContent) end_text();
  const bool between = state_ == State::kArgs || state_ == State::kClose;
  if (between && end == OutputEnd::kModel) end_call(true);
  flush();
  state_ = State::kDone;
  if (call_open_) ++counts_.truncated;
  if (failed_) return FinishReason::kError;
  if (stop_string_) return FinishReason::kStop;
  if (end == OutputEnd::kLimit) return FinishReason::kLength;
  return begun_ > 0 && !call_open_ ? FinishReason::kToolCalls : FinishReason::kStop;
}

}  // namespace dsv4
