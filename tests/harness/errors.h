// What an error says: tests compare the sentence that a user would read.

#pragma once

#include <gtest/gtest.h>

#include <string>

#include "dsv4/base/error.h"

namespace dsv4::test {

// Runs `action`, which must throw an Error with this code; returns its sentence.
template <class Action>
std::string error_of(ErrorCode code, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(name(error.code()), std::string(name(code))) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << text << "' does not hold '" << part << "'";
}

}  // namespace dsv4::test
