// What errors and pages say: tests compare the sentences that a user would read.

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

// What stands between `before` and the next space or line end; empty where `before` is not there.
inline std::string word_after(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  if (at == std::string::npos) return {};
  const size_t word = at + before.size();
  return text.substr(word, text.find_first_of(" \n", word) - word);
}

}  // namespace dsv4::test
