#include "apps/habits.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/suggest.h"
#include "dsv4/base/ascii.h"

namespace dsv4::apps {
namespace {

constexpr std::string_view kModel = "MODEL";  // an argument, not an option

// The one table of names: llama.cpp's, vLLM's and SGLang's.
struct Habit {
  std::string_view name, own;
};
constexpr Habit kHabits[] = {
    {"-m", kModel},
    {"--model", kModel},
    {"-c", "--context"},
    {"--ctx-size", "--context"},
    {"--max-model-len", "--context"},
    {"-np", "--max-batch"},
    {"--parallel", "--max-batch"},
    {"--alias", "--served-model-name"},
    {"--api-key", "--key"},  // of `dsv4 chat`
};

bool has_option(const CLI::App& command, std::string_view name) {
  const std::vector<std::string> names = option_names(command);
  return std::ranges::find(names, name) != names.end();
}

bool has(const CLI::App& command, std::string_view own) {
  if (own != kModel) return has_option(command, own);
  return std::ranges::any_of(command.get_options(), [&](const CLI::Option* option) {
    return option->get_positional() && lower_case(option->get_name(/*positional=*/true)) == "model";
  });
}

}  // namespace

std::string_view own_name(std::string_view name, const CLI::App& command) {
  for (const Habit& habit : kHabits) {
    if (habit.name == name && has(command, habit.own) && !has_option(command, name))
      return habit.own;
  }
  return {};
}

std::vector<std::string> with_own_names(std::vector<std::string> words, size_t at,
                                        const CLI::App& command) {
  std::vector<std::string> out, models;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    const std::string_view own = i < at ? "" : own_name(word.substr(0, equals), command);
    if (word == "--" && i >= at) {
      out.insert(out.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const bool has_value = equals != word.npos || i + 1 < words.size();
    if (own.empty() || !has_value) {
      out.push_back(word);
    } else if (own == kModel) {
      models.push_back(equals != word.npos ? word.substr(equals + 1) : words[++i]);
    } else {
      out.push_back(std::string(own) + (equals != word.npos ? word.substr(equals) : ""));
    }
  }
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(std::min(at, out.size())), models.begin(),
             models.end());
  return out;
}

std::string other_names(const CLI::App& command) {
  std::string text;
  std::string_view last;
  for (const Habit& habit : kHabits) {
    if (own_name(habit.name, command).empty()) continue;
    if (habit.own == last) {
      text += fmt::format(", {}", habit.name);
    } else {
      text += fmt::format("{}{} = {}", last.empty() ? "" : "; ", habit.own, habit.name);
    }
    last = habit.own;
  }
  return text;
}

}  // namespace dsv4::apps
