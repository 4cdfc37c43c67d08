// CallArguments: the parameters of one tool call as the text of one JSON object
// (docs/spec/serving.md 2.3).
//
// A string's bytes are sent as they come; any other value is held to its end and sent as it is if
// it is JSON, else as a JSON string. Not sent at all until the call ends: the value of a single
// parameter `arguments` or `input` that the tool does not declare, since it may be the object that
// the model meant. Where the tool's types are given, neither is a string that may become a value of
// another type (coerce.h).

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "dsv4/chat/coerce.h"
#include "dsv4/chat/output_sink.h"

namespace dsv4 {

class CallArguments {
 public:
  explicit CallArguments(OutputSink& sink) : sink_(sink) {}

  // `declared`: the keys of the tool's parameters; null where the tool is not declared. `types`:
  // those that values are coerced to; null: values stay as the model wrote them.
  void begin_call(const std::unordered_set<std::string>* declared,
                  const ParameterTypes* types = nullptr);
  void begin_value(std::string key, bool is_string);
  void value_text(std::string_view text);
  void end_value();
  // Text between the tags, which counts only if there is no parameter.
  void body_text(std::string_view text);
  // Completes the object; true where something of it was not as the model wrote it.
  bool end_call();
  // Gives what is pending to the sink.
  void flush();

  // Bytes of this call's arguments, what is held included.
  size_t bytes() const { return sent_ + out_.size() + value_.size() + body_.size(); }

 private:
  enum class Value { kNone, kStreamed, kHeld, kWhole };

  void put(std::string_view json) { out_ += json; }
  void put_key(const std::string& key);
  void put_value(const std::string& key, bool is_string, const std::string& text);
  void put_whole();
  JsonTypes types_of(const std::string& key) const;
  std::optional<std::string> unwrapped() const;

  OutputSink& sink_;
  const std::unordered_set<std::string>* declared_ = nullptr;
  const ParameterTypes* types_ = nullptr;
  Value value_kind_ = Value::kNone;
  bool is_string_ = false;
  std::string key_, value_, body_;
  bool whole_pending_ = false;  // a value of kind kWhole is complete and not sent
  size_t parameters_ = 0;       // sent or begun
  bool repaired_ = false;
  std::string out_;
  size_t sent_ = 0;
};

// Trims JSON's white space: space, tab, newline, carriage return.
std::string_view trim_json(std::string_view text);

}  // namespace dsv4
