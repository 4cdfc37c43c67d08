// The prompts of `dsv4 run`: from options, files, a pipe, or one JSON object per line.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dsv4::apps {

struct RunPrompt {
  std::string name;  // of the file or line, for headers and errors
  std::string text;
  std::optional<int64_t> max_new_tokens;  // of a JSON line; the options' otherwise
  std::optional<uint64_t> seed;
};

struct PromptSources {
  std::optional<std::string> text;  // -p; may be empty
  std::vector<std::string> files;   // -f, "-": standard input
  std::string json_lines;           // --jsonl, "-": standard input
};

// Without any source the prompt is what standard input holds; a terminal or nothing there is an
// error. One line end at the end of a file is no part of the prompt: editors and echo add it.
// JSON lines are strings, or objects {"prompt": TEXT, "max_tokens": N, "seed": N}.
std::vector<RunPrompt> read_prompts(const PromptSources& sources);

}  // namespace dsv4::apps
