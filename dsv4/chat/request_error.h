// RequestError: a request that is refused, as the HTTP layers report it.

#pragma once

#include <string>

#include "dsv4/base/error.h"

namespace dsv4 {

// Control bytes as '?', at most 300 bytes, cut between characters.
std::string one_line(std::string text);

class RequestError : public Error {
 public:
  // `param` is the path of the field ("messages[2].content"), empty where no field is at fault;
  // `message` becomes one line: it may hold a client's bytes.
  RequestError(std::string code, std::string param, const std::string& message, int status = 400)
      : Error(ErrorCode::kBadInput, one_line(message)),
        status_(status),
        code_(std::move(code)),
        param_(std::move(param)) {}

  int status() const { return status_; }
  const std::string& api_code() const { return code_; }
  const std::string& param() const { return param_; }

 private:
  int status_;
  std::string code_, param_;
};

// 400 invalid_value: "PARAM: what is wrong".
template <class... Args>
[[noreturn]] void refuse(const std::string& param, fmt::format_string<Args...> format,
                         Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  throw RequestError("invalid_value", param, param.empty() ? text : param + ": " + text);
}

}  // namespace dsv4
