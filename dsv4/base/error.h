// Error: the one exception type of the library.
//
// A broken precondition, a failed driver call and bad input from outside all throw Error with a
// code and a sentence that contains the values. Applications catch it once, in main(), print the
// sentence and exit non-zero. A library function never prints, aborts or retries.

#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace dsv4 {

enum class ErrorCode {
  kInvalidArgument,  // the caller broke a documented precondition
  kBadInput,         // a file, a config or a prompt is wrong
  kIo,               // the operating system refused: open, read, write, map
  kUnsupported,      // correct, but no implementation fits
  kResource,         // does not fit into memory or cache
};

const char* name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

[[noreturn]] void fail(ErrorCode code, const std::string& message);

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  fail(code, fmt::vformat(format, fmt::make_format_args(args...)));
}

}  // namespace dsv4

// Always on: throws kInvalidArgument "file:line: condition: message" when the condition is false.
#define DSV4_CHECK(condition, ...)                                                    \
  do {                                                                                \
    if (!(condition))                                                                 \
      ::dsv4::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (0)

namespace dsv4 {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}  // namespace dsv4
