// Code that all fuzzers share. A fuzzer is one file X_fuzz.cc that defines LLVMFuzzerTestOneInput
// and one line in CMakeLists.txt.
//
// The only allowed outcome of bad input is dsv4::Error with code kBadInput; any other exception
// leaves the function and libFuzzer reports it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "dsv4/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace dsv4::fuzz {

inline std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// `other`: a second code that is allowed.
template <class Parse>
void allow_bad_input(const Parse& parse, ErrorCode other = ErrorCode::kBadInput) {
  try {
    parse();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput && error.code() != other) throw;
  }
}

// A property that must hold for every input that was accepted.
inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace dsv4::fuzz
