// dsv4: run, measure and inspect DeepSeek-V4 models. Commands are in cmd_*.cc; this file parses,
// and is the only place where an Error becomes a line on stderr and an exit code.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/habits.h"
#include "apps/signals.h"
#include "apps/suggest.h"
#include "apps/threads.h"
#include "apps/version.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/comm/rank_team.h"

namespace {

constexpr int kExitError = 1, kExitUsage = 2;
constexpr size_t kMaxErrorLine = 600;

// Errors quote names and keys of files: one line without control characters, whatever they hold.
// The middle of a long one is left out: what failed comes first, and why comes last.
void print_error(const std::string& message) {
  std::string line = dsv4::printable(message, 4 * message.size());
  if (line.size() > kMaxErrorLine) {
    size_t tail = line.size() - kMaxErrorLine / 2;
    while ((static_cast<unsigned char>(line[tail]) & 0xc0u) == 0x80) ++tail;
    line = dsv4::printable(line, kMaxErrorLine / 2) + line.substr(tail);
  }
  std::fprintf(stderr, "dsv4: %s\n", line.c_str());
}

// "dsv4 eval ppl"
std::string full_name(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name()
                                      : full_name(app->get_parent()) + " " + app->get_name();
}

// The command that the leading words name, the first word after it that names none, and where its
// arguments begin.
struct Named {
  CLI::App* command;
  std::string unknown;
  size_t arguments;
};
Named named_command(CLI::App& app, const std::vector<std::string>& words) {
  CLI::App* command = &app;
  size_t i = 1;
  for (; i < words.size(); ++i) {
    if (command->get_require_subcommand_min() == 0) break;  // its words are arguments
    const auto below = command->get_subcommands(
        [&](CLI::App* each) { return !each->get_name().empty() && each->get_name() == words[i]; });
    if (below.empty()) return {command, words[i].starts_with('-') ? "" : words[i], i};
    command = below.front();
  }
  return {command, "", i};
}

int usage_error(const Named& named, const std::string& what) {
  constexpr size_t kMost = 500;  // bytes: a value on the command line may have any length
  const std::string line =
      fmt::format("{} (see {} --help)", dsv4::printable(what, kMost), full_name(named.command));
  print_error(line);
  return kExitUsage;
}

int unexpected(const Named& named) {
  return usage_error(named,
                     dsv4::apps::unexpected_words(*named.command, named.command->remaining()));
}

// A full disk or a closed pipe shows only here.
int flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout)
    dsv4::fail(dsv4::ErrorCode::kIo, "cannot write to standard output");
  return 0;
}

int parse(CLI::App& app, int argc, char** argv) {
  // "dsv4 help eval ppl" is "dsv4 eval ppl --help".
  std::vector<std::string> words(argv, argv + argc);
  if (argc > 1 && words[1] == "help") {
    words.erase(words.begin() + 1);
    words.push_back("--help");
  }
  const Named named = named_command(app, words);
  if (!named.unknown.empty()) {
    const std::vector<std::string> names = dsv4::apps::command_names(*named.command);
    const std::string meant = dsv4::apps::nearest(named.unknown, names);
    return usage_error(
        named,
        fmt::format("no command '{}': {}want {}", dsv4::printable(named.unknown, dsv4::kMaxQuote),
                    meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                    CLI::detail::join(names, ", ")));
  }
  try {
    words = dsv4::apps::with_own_names(std::move(words), named.arguments, *named.command);
    app.parse(std::vector<std::string>(words.rbegin(), words.rend() - 1));  // in reverse order
  } catch (const CLI::ExtrasError&) {
    return unexpected(named);
  } catch (const CLI::RequiredError& error) {
    if (!named.command->remaining().empty()) return unexpected(named);
    const bool no_command = named.command->get_require_subcommand_min() > 0;
    const auto names = dsv4::apps::command_names(*named.command);
    return usage_error(
        named, no_command ? fmt::format("give a command: {}", CLI::detail::join(names, ", "))
                          : error.what());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      std::cout.flush();
      return flush_output();
    }
    return usage_error(named, error.what());
  }
  return 0;
}

// A rank that did not come back (comm/rank_team.h) may use what destructors of static objects would
// take away from it.
int leave(int status) {
  if (!dsv4::any_rank_lost()) return status;
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace

int main(int argc, char** argv) {
  const auto failed = [](const char* what) {
    dsv4::tell_other_ranks(what);
    print_error(what);
  };
  try {
    dsv4::apps::install_signal_handlers();
    dsv4::apps::set_default_threads();
    CLI::App app("dsv4: DeepSeek-V4 inference", "dsv4");
    app.set_version_flag("--version", dsv4::apps::version_text,
                         "Print the version and the build targets");
    app.require_subcommand(1);
    dsv4::apps::Action action;
    dsv4::apps::add_run(app, action);
    dsv4::apps::add_eval(app, action);
    dsv4::apps::add_inspect(app, action);
    dsv4::apps::add_quantize(app, action);
    dsv4::apps::add_plan(app, action);
    dsv4::apps::add_bench(app, action);
    dsv4::apps::add_serve(app, action);
    dsv4::apps::add_chat(app, action);
    dsv4::apps::add_tokenize(app, action);
    dsv4::apps::add_pull(app, action);
    dsv4::apps::add_completion(app, action);
    if (const int status = parse(app, argc, argv); status != 0 || !action) return status;
    action();
    return leave(flush_output());
  } catch (const dsv4::apps::ExitStatus& exit) {
    dsv4::tell_other_ranks(fmt::format("it has ended with status {}", exit.status));
    return leave(exit.status);
  } catch (const std::bad_alloc&) {
    failed("out of memory");
  } catch (const std::exception& error) {
    failed(error.what());
  }
  return leave(kExitError);
}
