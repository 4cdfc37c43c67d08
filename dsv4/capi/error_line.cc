#include "dsv4/capi/call.h"

#include <new>
#include <string>

#include "dsv4/base/error.h"

namespace dsv4::capi {
namespace {

thread_local std::string error_line;

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kBadInput:
      return DSV4_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return DSV4_UNSUPPORTED;
    case ErrorCode::kResource:
      return DSV4_OUT_OF_ROOM;
    case ErrorCode::kIo:
      return DSV4_FAILED;
  }
  return DSV4_FAILED;
}

int failed(int status, const char* line) noexcept {
  try {
    error_line = line;
  } catch (...) {
    error_line.clear();  // no memory for the line either
  }
  return status;
}

}  // namespace

int guarded(const std::function<void()>& call) noexcept {
  try {
    call();
    return DSV4_OK;
  } catch (const Error& error) {
    return failed(status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(DSV4_OUT_OF_ROOM, "out of host memory");
  } catch (const std::exception& error) {
    return failed(DSV4_FAILED, error.what());
  }
}

}  // namespace dsv4::capi

const char* dsv4_last_error(void) {
  return dsv4::capi::error_line.c_str();
}

const char* dsv4_version(void) {
  return DSV4_VERSION;
}
