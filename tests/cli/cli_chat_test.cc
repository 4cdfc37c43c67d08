// dsv4 inspect prompt|completion, the contract of scripts (docs/chat.md), and dsv4 chat in a pipe.

#include <nlohmann/json.hpp>

#include "tests/cli/cli.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;
using Cli = test::Cli;

class CliChat : public Cli {
 protected:
  // One answer for each line of `input`.
  std::vector<Json> inspect(const std::string& arguments, const std::string& input) const {
    write("input", input);
    const std::string command =
        fmt::format("{} {} <{} >{}", DSV4_BINARY, arguments, path("input"), path("output"));
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    std::vector<Json> answers;
    std::istringstream lines(read(folder_ / "output"));
    for (std::string line; std::getline(lines, line);) answers.push_back(Json::parse(line));
    return answers;
  }
};

TEST_F(CliChat, Prompt) {
  const auto answers = inspect("inspect prompt demo",
                               R"({"messages": [{"role": "user", "content": "Hi"}]})"
                               "\n\n"
                               R"({"messages": [{"role": "user", "content": "<think>"}],)"
                               R"( "thinking": {"type": "enabled"}})"
                               "\nno json\n[]\n"
                               R"({"messages": [{"role": "latest_reminder", "content": "T"}]})"
                               "\n"
                               R"({"messages": []})"
                               "\n"
                               R"({"level": "encoder", "messages": [{"role": "user",)"
                               R"( "content": "Q"}], "thinking_mode": "chat"})"
                               "\n");
  ASSERT_EQ(answers.size(), 7u);
  EXPECT_EQ(answers[0].at("prompt"), "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>")
      << "the demo does not think unless it is asked to";
  EXPECT_EQ(answers[0].at("stage"), "content");
  EXPECT_EQ(answers[0].at("special"), Json::parse("[[0, 21], [21, 29], [31, 44], [44, 52]]"));
  EXPECT_EQ(answers[0].at("ids").front(), 0);
  EXPECT_EQ(answers[0].at("ids").back(), 1534);
  const std::vector<int> ids = answers[1].at("ids");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1533), 1) << "only the tail's marker is one";
  EXPECT_EQ(answers[1].at("stage"), "reason");
  for (const size_t bad : {2, 3, 4, 5}) {
    EXPECT_EQ(answers[bad].at("error").at("status"), 400);
    EXPECT_FALSE(answers[bad].at("error").at("message").get<std::string>().empty());
  }
  EXPECT_NE(answers[4].dump().find("this model has no <｜latest_reminder｜> token"),
            std::string::npos);
  EXPECT_EQ(answers[6].at("prompt"), "<｜begin▁of▁sentence｜><｜User｜>Q<｜Assistant｜></think>");
}

TEST_F(CliChat, EffortProfile) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "Q"}], "thinking": {"type": "enabled"}})";
  const auto begins = [&](const char* profile) {
    const auto answers = inspect(fmt::format("inspect prompt demo {}", profile), line);
    return answers.at(0).at("prompt").get<std::string>().find("Reasoning Effort") !=
           std::string::npos;
  };
  EXPECT_FALSE(begins("")) << "the demo's config is that of the preview";
  EXPECT_FALSE(begins("--effort-profile preview"));
  EXPECT_TRUE(begins("--effort-profile official"));
}

TEST_F(CliChat, Completion) {
  const std::string call =
      R"(<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\")"
      R"( string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>)";
  const auto answers = inspect(
      "inspect completion demo",
      R"({"output": "R</think>\n\nC\n\n)" + call +
          R"(", "thinking": true, "tools": true})"
          "\n"
          R"({"pieces": ["R</thi", "nk>C<｜end▁of▁sent", "ence｜>more"], "stage": "reason"})"
          "\n"
          R"({"ids": [1534, 1], "thinking": true, "finish": "length"})"
          "\n"
          R"({"output": "aSTOPb", "stops": ["STOP"]})"
          "\n"
          R"({"output": "a", "ids": [1]})"
          "\n"
          R"({"output": "<｜DSML｜invoke name=\"f\">", "start_tools": true, "tools": true,)"
          R"( "finish": "length"})"
          "\n"
          R"({"ids": [99999]})"
          "\n");
  ASSERT_EQ(answers.size(), 7u);
  EXPECT_EQ(answers[0], Json::parse(R"({"reasoning_content": "R", "content": "C", "tool_calls":
      [{"name": "f", "arguments": "{\"a\": \"x\"}"}], "finish_reason": "tool_calls"})"));
  EXPECT_EQ(answers[1], Json::parse(R"({"reasoning_content": "R", "content": "C",
      "tool_calls": [], "finish_reason": "stop"})"));
  EXPECT_EQ(answers[2].at("finish_reason"), "length");
  EXPECT_EQ(answers[3].at("content"), "a");
  EXPECT_EQ(answers[4].at("error").at("status"), 400);
  EXPECT_EQ(answers[5].at("tool_calls").at(0).at("arguments"), "");
  EXPECT_EQ(answers[6].at("error").at("status"), 400);
}

// A scripted engine answers; without a terminal only the answers are printed.
TEST_F(CliChat, TalksInAPipe) {
  write("script", R"({"match": "second", "output": "Two."}
{"match": "color", "output": "re\u001b[31md\u0007"}
{"output": "One."}
)");
  const std::string history = path("history");
  write("input", "Hello\n/edit second\n/undo\n\"\"\"a\nthird\"\"\"\n/save " + history +
                     "\ncolor\n/load " + history + "\n/retry\n/quit\nnever read\n");
  const std::string command = fmt::format("{} chat demo --engine script:{} <{} >{}", DSV4_BINARY,
                                          path("script"), path("input"), path("output"));
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::string answers = read(folder_ / "output");
  std::erase(answers, '\n');
  EXPECT_EQ(answers, "One.Two.One.re[31mdOne.") << "the model's control bytes are never printed";
  const Json saved = Json::parse(read(folder_ / "history"));
  ASSERT_EQ(saved.at("messages").size(), 2u) << saved;
  EXPECT_EQ(saved["messages"][0]["content"], "a\nthird");
  EXPECT_EQ(saved["messages"][1]["content"], "One.");
}

// The context has room for one token after one of these prompts: the token that cannot be printed
// is then also the last one of its answer.
TEST_F(CliChat, AnAnswerThatCannotBePrintedIsAnError) {
  std::string text = "Hi";
  for (int words = 0; words < 10; ++words) {
    write("input", text + "\n");
    const auto result = shell(fmt::format("timeout 60 {} chat demo --context 16 <{} >/dev/full",
                                          DSV4_BINARY, path("input")));
    EXPECT_EQ(result.exit_code, 1) << text << result.err;
    text += " a";
  }
}

TEST_F(CliChat, WrongCommandLines) {
  expect_error("inspect prompt", "needs a model folder");
  expect_error("inspect completion nowhere", "no model folder nowhere");
  expect_error("inspect ops demo", "takes no second word");
  expect_error("inspect prompt " + path(""), "config.json is missing");
}

}  // namespace
}  // namespace dsv4
