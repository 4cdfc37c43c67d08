#include "dsv4/base/error.h"

#include <cstring>

namespace dsv4 {

const char* name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kBadInput:
      return "bad input";
    case ErrorCode::kIo:
      return "i/o error";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kResource:
      return "out of room";
  }
  return "unknown";
}

void fail(ErrorCode code, const std::string& message) {
  throw Error(code, message);
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const char* base = std::strrchr(file, '/');
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}:{}: {}: {}", base != nullptr ? base + 1 : file, line, condition, message));
}

}  // namespace dsv4
