// Every environment variable that the program reads, in one table; `dsv4 inspect env` prints it.
// Nothing else calls getenv.

#pragma once

#include <span>
#include <string>

namespace dsv4 {

struct EnvVar {
  const char* name;
  const char* fallback;  // in words, what applies when it is unset
  const char* help;
  bool secret = false;  // reports say that it is set, and not what it is
};

std::span<const EnvVar> env_table();

// Value of a variable of the table, empty when unset; throws kInvalidArgument for any other name.
std::string env(const char* name);

}  // namespace dsv4
