// Options by the names that other servers and programs have for them: -m, --ctx-size and the like.
// They work in every command that has the option they stand for.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

// The words of a command line with the names that `command` does not have replaced by its own. A
// model that an option gave comes first, at words[at], where the arguments of the command begin: an
// option that takes several values cannot swallow it there.
std::vector<std::string> with_own_names(std::vector<std::string> words, size_t at,
                                        const CLI::App& command);

// The option or argument that the name stands for in this command; empty: none.
std::string_view own_name(std::string_view name, const CLI::App& command);

// For --help: every name that the command takes, and what it stands for.
std::string other_names(const CLI::App& command);

}  // namespace dsv4::apps
