#include "apps/suggest.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

#include "apps/habits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

constexpr size_t kMaxWord = 40;  // a longer one is no typo of a name

// Letters to insert, delete, replace or swap with their neighbor.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] =
          std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before = row;
    row = next;
  }
  return row.back();
}

std::string_view without_dashes(std::string_view word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  const std::string_view plain = without_dashes(word);
  if (plain.empty() || plain.size() > kMaxWord) return "";
  // A single letter is the beginning of a name.
  if (plain.size() == 1) {
    const auto at = std::ranges::find_if(names, [&](const std::string& name) {
      return without_dashes(name).size() > 1 && without_dashes(name)[0] == plain[0];
    });
    return at == names.end() ? "" : *at;
  }
  std::string best;
  size_t least = std::max<size_t>(1, plain.size() / 3) + 1;
  for (const std::string& name : names) {
    if (without_dashes(name).size() < 2) continue;
    const size_t far = distance(plain, without_dashes(name));
    if (far < least) best = name, least = far;
  }
  return best;
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* each : command.get_subcommands([](const CLI::App*) { return true; }))
    if (!each->get_name().empty()) names.push_back(each->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest(word, names);
  return name.empty() ? "" : fmt::format(": did you mean {}?", name);
}

std::string unexpected_words(const CLI::App& command, const std::vector<std::string>& words) {
  const auto option = std::ranges::find_if(
      words, [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  if (option == words.end())
    return fmt::format("nothing takes the argument '{}'", printable(words.front(), kMaxQuote));
  const std::string_view word = std::string_view(*option).substr(0, option->find('='));
  if (const std::string_view own = own_name(word, command); !own.empty())
    return fmt::format("{} stands for {} and wants a value", word, own);
  return fmt::format("no option {}{}", printable(word, kMaxQuote),
                     did_you_mean(word, option_names(command)));
}

}  // namespace dsv4::apps
