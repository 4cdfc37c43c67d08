// OutputParser: what the model writes, as reasoning, content and tool calls
// (docs/spec/serving.md 2).
//
//   reasoning </think> content <｜DSML｜tool_calls>
//     <｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>
//     </｜DSML｜invoke> </｜DSML｜tool_calls>
//
// Input is bytes and markers; a marker spelled with ordinary tokens is plain text. Results do not
// depend on how the input is cut, and every piece of output is whole characters of valid UTF-8:
// bytes that cannot become a character are U+FFFD. The arguments of a finished call are always one
// JSON object.

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dsv4/chat/call_arguments.h"
#include "dsv4/chat/markers.h"
#include "dsv4/chat/output_sink.h"
#include "dsv4/chat/prompt.h"
#include "dsv4/chat/stop_matcher.h"

namespace dsv4 {

struct ParserOptions {
  OutputStage stage = OutputStage::kContent;  // Prompt::stage
  bool continues = false;                     // Prompt::continues: first newlines are output
  bool tools = false;                         // without, the markup of calls is content
  int64_t max_calls = 0;                      // 0: any number; 1: parallel_tool_calls is false
  std::vector<std::string> stops;             // of the content; none is empty
  // The keys that each declared tool's parameters have.
  std::unordered_map<std::string, std::unordered_set<std::string>> declared;
  // By the names of tools: the types that values of their parameters are coerced to (coerce.h).
  std::unordered_map<std::string, ParameterTypes> types;
};

enum class OutputEnd {
  kModel,  // the end-of-sentence token, or the engine stopped because the parser was done
  kLimit,  // length, deadline, cancellation
};

enum class FinishReason { kStop, kLength, kToolCalls, kError };
const char* name(FinishReason reason);

// Counts of one output, for the server's counters.
struct ParseCounts {
  int64_t calls = 0;      // that were completed
  int64_t repaired = 0;   // of these, with an end or a value that the model did not write
  int64_t truncated = 0;  // left open
  int64_t unknown = 0;    // not declared, where any tool is
};

class OutputParser {
 public:
  // The sink must outlive the parser.
  OutputParser(ParserOptions options, OutputSink& sink);

  void text(std::string_view bytes);
  void marker(Marker marker);
  // What comes after this changes nothing: a stop string, or the block of calls is complete.
  bool done() const { return state_ == State::kDone; }
  // No input may follow.
  FinishReason finish(OutputEnd end);

  const std::optional<std::string>& stop_string() const { return stop_string_; }
  const ParseCounts& counts() const { return counts_; }

 private:
  // A byte, or kMarker + a Marker.
  using Symbol = int;
  static constexpr Symbol kMarker = 256;
  static constexpr Symbol kThink = kMarker + static_cast<int>(Marker::kThink);
  static constexpr Symbol kThinkEnd = kMarker + static_cast<int>(Marker::kThinkEnd);
  static constexpr Symbol kDsml = kMarker + static_cast<int>(Marker::kDsml);

  enum class State { kReason, kContent, kBlock, kName, kNameTail, kArgs, kValue, kClose, kDone };
  // What has been read of a tag: `<`, `</`, or either with DSML, after which `word_` collects; of a
  // parameter's, its attributes.
  enum class Tag { kNone, kLess, kSlash, kOpen, kClose, kAttributes };

  static std::string spelled(Symbol symbol);
  void accept(Symbol symbol);  // through the stop matcher
  bool release_front();
  void stop_before(size_t bytes, const std::string& stop);
  void process(Symbol symbol);

  bool read_tag(Symbol symbol);
  std::string take_tag();
  bool add_to_word(Symbol symbol);

  void in_text(Symbol symbol);
  void open_in_text(Symbol symbol);
  void put_text(std::string_view bytes);
  void leave_reasoning();
  void enter_block();

  void in_block(Symbol symbol);
  void open_in_block(Symbol symbol);
  void in_name(Symbol symbol);
  void in_name_tail(Symbol symbol);
  void begin_call();
  void in_args(Symbol symbol);
  void open_in_args(Symbol symbol);
  void in_attributes(Symbol symbol);
  void close_in_args(Symbol symbol);
  void in_value(Symbol symbol);
  void in_close(Symbol symbol);
  void begin_value();
  void end_call(bool repaired);
  void check_size();

  void flush();  // pending output to the sink
  void end_text();

  ParserOptions options_;
  OutputSink& sink_;
  State state_;
  Tag tag_ = Tag::kNone;
  std::string word_;  // of the tag that is read
  char quote_ = 0;    // that is open in it
  std::string utf8_;  // an incomplete character
  bool any_input_ = false;

  StopMatcher stops_;
  std::deque<Symbol> held_;  // that could still belong to a stop string
  size_t held_bytes_ = 0;
  std::optional<std::string> stop_string_;

  bool leading_ = true;  // newlines are dropped
  size_t newlines_ = 0;  // that are output only if text follows
  std::string out_;      // reasoning or content

  std::string name_;
  CallArguments arguments_;
  bool call_open_ = false, failed_ = false;
  int64_t begun_ = 0;
  ParseCounts counts_;
};

}  // namespace dsv4
