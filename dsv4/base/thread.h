// std::jthread, with an Error that says what to do where the system allows no more threads: the
// library's exception names neither the thread nor the limit.

#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "dsv4/base/error.h"

namespace dsv4 {

// `what`: "a client", in "cannot start a client: ...". Throws kResource.
template <class Function>
std::jthread start_thread(const char* what, Function&& function) {
  try {
    return std::jthread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    fail(ErrorCode::kResource,
         "cannot start {}: {} (ulimit -u and the control group limit the number of threads)", what,
         error.code().message());
  }
}

}  // namespace dsv4
