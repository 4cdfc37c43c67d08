// What the tests of the service share: a script, bodies, one server for many tests.

#pragma once

#include "tests/server/scripted_server.h"

namespace dsv4::test {

// Prompts choose the answer by their text.
inline const char* const kServiceScript =
    R"({"match": "weather", "output": "Let me see.</think>\n\nI call.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"}
{"match": "ponder", "output": "Hm, yes.</think>\n\nDone."}
{"match": "count", "output": "one two three four five six seven eight nine ten"}
{"match": "slow", "output": "tick ", "repeat": 3000, "step_ms": 20}
{"match": "fault", "output": "some words before the end", "fault_after": 2}
{"output": "Hello there."}
)";

inline json user(const std::string& text) {
  return {{"role", "user"}, {"content", text}};
}

inline json chat_body(const std::string& text) {
  return {{"messages", json::array({user(text)})}};
}

inline ScriptedServer& server() {
  static ScriptedServer one(kServiceScript);
  return one;
}

}  // namespace dsv4::test
