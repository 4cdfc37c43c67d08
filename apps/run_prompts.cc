#include "apps/run_prompts.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

std::string without_last_line_end(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

RunPrompt prompt_of_file(const std::string& path) {
  return {.name = input_name(path), .text = without_last_line_end(read_input(path))};
}

uint64_t number(const nlohmann::json& value, const std::string& where, const std::string& key,
                uint64_t low, uint64_t high) {
  const bool fits =
      value.is_number_unsigned() && value.get<uint64_t>() >= low && value.get<uint64_t>() <= high;
  if (!fits)
    fail(ErrorCode::kBadInput, "{}: {} must be a whole number from {} to {}", where, key, low,
         high);
  return value.get<uint64_t>();
}

RunPrompt prompt_of_line(const std::string& line, const std::string& where) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_string()) return {.name = where, .text = json.get<std::string>()};
  if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string())
    fail(ErrorCode::kBadInput, "{}: want a JSON string, or an object with a string \"prompt\"",
         where);
  RunPrompt prompt{.name = where, .text = json["prompt"].get<std::string>()};
  for (const auto& [key, value] : json.items()) {
    if (key == "prompt") continue;
    if (key == "max_tokens") {
      prompt.max_new_tokens = static_cast<int64_t>(number(value, where, key, 1, 1u << 30));
    } else if (key == "seed") {
      prompt.seed = number(value, where, key, 0, UINT64_MAX);
    } else {
      fail(ErrorCode::kBadInput, "{}: unknown key '{}': want prompt, max_tokens or seed", where,
           quotable(key));
    }
  }
  return prompt;
}

std::vector<RunPrompt> prompts_of_lines(const std::string& path) {
  const std::string text = read_input(path);
  std::vector<RunPrompt> prompts;
  int64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string content = text.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (content.find_first_not_of(" \t\r") == content.npos) continue;
    prompts.push_back(prompt_of_line(content, fmt::format("{}, line {}", input_name(path), line)));
  }
  if (prompts.empty()) fail(ErrorCode::kBadInput, "{}: no prompt", input_name(path));
  return prompts;
}

}  // namespace

std::vector<RunPrompt> read_prompts(const PromptSources& sources) {
  if (!sources.json_lines.empty()) return prompts_of_lines(sources.json_lines);
  if (sources.text) return {{.name = "-p", .text = *sources.text}};
  std::vector<RunPrompt> prompts;
  for (const std::string& file : sources.files) prompts.push_back(prompt_of_file(file));
  if (!prompts.empty()) return prompts;
  constexpr const char* kNone = "no prompt: give -p TEXT, -f FILE or a pipe";
  if (isatty(STDIN_FILENO) != 0) fail(ErrorCode::kBadInput, kNone);
  prompts.push_back(prompt_of_file("-"));
  if (prompts[0].text.empty()) fail(ErrorCode::kBadInput, kNone);
  return prompts;
}

}  // namespace dsv4::apps
