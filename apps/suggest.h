// What the user of a mistyped command or option may have meant.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

// The name that is nearest to the word: by letters that are missing, added, different or swapped,
// at most one in three of the word and at least one. A single letter stands for the first name that
// begins with it. Empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

// The names that a command knows: subcommands, or options with their dashes.
std::vector<std::string> command_names(const CLI::App& command);
std::vector<std::string> option_names(const CLI::App& command);

// The error for words that a command does not know, in their order; the first option among them is
// the one at fault, because a value after it only looks superfluous.
std::string unexpected_words(const CLI::App& command, const std::vector<std::string>& words);

// ": did you mean NAME?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace dsv4::apps
