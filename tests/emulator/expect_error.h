// For tests of kernels that break a rule.

#pragma once

#include <gtest/gtest.h>

#include <string>

#include "dsv4/base/error.h"
#include "tests/emulator/launch.h"

namespace dsv4::emulator {

// For every seed run(seed) fails with a message that contains `text`.
template <class Run>
void expect_error_of(const std::string& text, const Run& run) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    try {
      run(seed);
      ADD_FAILURE() << "seed " << seed << ": expected an error about " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << "seed " << seed << ": " << error.what();
    }
  }
}

template <class Body>
void expect_error(Launch how, const std::string& text, const Body& body) {
  expect_error_of(text, [&](uint64_t seed) {
    how.seed = seed;
    launch(how, body);
  });
}

}  // namespace dsv4::emulator
