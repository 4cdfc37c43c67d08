// What the parser of the model's output reports, in order. Texts are whole characters of UTF-8 and
// not empty; joined, they do not depend on how the output was cut.

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_reasoning(std::string_view text) = 0;
  virtual void on_content(std::string_view text) = 0;
  virtual void on_call(const std::string& name) = 0;
  // `json` is a piece of the latest call's arguments, one JSON object.
  virtual void on_arguments(std::string_view json) = 0;
  // The latest call is complete. Calls that the output was cut in never are.
  virtual void on_call_end() = 0;
};

}  // namespace dsv4
