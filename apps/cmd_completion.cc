// dsv4 completion bash|zsh|fish: a script that completes commands and options, made from the
// program's own tables. The installation puts them where the shells look.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "apps/commands.h"
#include "dsv4/base/error.h"

namespace dsv4::apps {
namespace {

struct Words {
  std::string path;                  // "eval ppl"; empty: dsv4 itself
  std::vector<std::string> below;    // its commands
  std::vector<std::string> options;  // "--context", "-t"
};

void collect(const CLI::App& app, const std::string& path, std::vector<Words>& all) {
  Words words{.path = path};
  const auto add_options = [&](const CLI::App& group) {
    for (const CLI::Option* option : group.get_options()) {
      for (const std::string& name : option->get_lnames()) words.options.push_back("--" + name);
      for (const std::string& name : option->get_snames()) words.options.push_back("-" + name);
    }
  };
  add_options(app);
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* below : commands) {
    if (below->get_name().empty())
      add_options(*below);  // an option group
    else
      words.below.push_back(below->get_name());
  }
  all.push_back(std::move(words));
  for (const CLI::App* below : commands) {
    if (!below->get_name().empty())
      collect(*below, path.empty() ? below->get_name() : path + " " + below->get_name(), all);
  }
}

// Words after the command that are commands themselves lead to its entry; anything else completes
// options after a dash, and files.
std::string bash_script(const std::vector<Words>& all) {
  std::string text =
      "# bash completion of dsv4\n"
      "_dsv4() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} path= word words\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case \"$path $word\" in\n";
  std::string paths, cases;
  for (const Words& words : all) {
    if (!words.path.empty()) {
      const size_t cut = words.path.rfind(' ');
      const std::string before = cut == std::string::npos ? "" : words.path.substr(0, cut);
      const std::string last = cut == std::string::npos ? words.path : words.path.substr(cut + 1);
      paths += fmt::format("      \"{} {}\") path='{}' ;;\n", before, last, words.path);
    }
    cases += fmt::format("    '{}') words='{}'; commands='{}' ;;\n", words.path,
                         fmt::join(words.options, " "), fmt::join(words.below, " "));
  }
  text += paths;
  text +=
      "    esac\n"
      "  done\n"
      "  local commands\n"
      "  case \"$path\" in\n";
  text += cases;
  text +=
      "  esac\n"
      "  if [[ $current == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  elif [[ -n $commands ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$commands\" -- \"$current\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -f -W demo -- \"$current\"))\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _dsv4 dsv4\n";
  return text;
}

std::string zsh_script(const std::vector<Words>& all) {
  return "#compdef dsv4\nautoload -U +X bashcompinit && bashcompinit\n" + bash_script(all);
}

std::string fish_script(const std::vector<Words>& all) {
  std::string text = "# fish completion of dsv4\n";
  for (const Words& words : all) {
    std::string seen;
    for (size_t begin = 0; begin < words.path.size();) {
      const size_t end = std::min(words.path.find(' ', begin), words.path.size());
      seen += fmt::format("{}__fish_seen_subcommand_from {}", seen.empty() ? "" : "; and ",
                          words.path.substr(begin, end - begin));
      begin = end + 1;
    }
    const std::string here = seen.empty() ? "__fish_use_subcommand" : seen;
    for (const std::string& below : words.below)
      text += fmt::format("complete -c dsv4 -n '{}' -a {}\n", here, below);
    for (const std::string& option : words.options)
      text += option.rfind("--", 0) == 0
                  ? fmt::format("complete -c dsv4 -n '{}' -l {}\n", here, option.substr(2))
                  : fmt::format("complete -c dsv4 -n '{}' -s {}\n", here, option.substr(1));
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for a shell");
  command->footer("Example: source <(dsv4 completion bash)");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([shell, &app, &action] {
    action = [shell, &app] {
      std::vector<Words> all;
      collect(app, "", all);
      fmt::print("{}", *shell == "bash"  ? bash_script(all)
                       : *shell == "zsh" ? zsh_script(all)
                                         : fish_script(all));
    };
  });
}

}  // namespace dsv4::apps
