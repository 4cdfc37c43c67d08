// dsv4 chat MODEL, or dsv4 chat --url URL: a conversation in the terminal (docs/spec/serving.md 9).
// With a pipe instead of a terminal it reads lines and prints the answers only.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "apps/chat_backend.h"
#include "apps/chat_printer.h"
#include "apps/commands.h"
#include "apps/line_editor.h"
#include "apps/rank_process.h"
#include "apps/sampling_options.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/effort.h"
#include "dsv4/text/utf8.h"

namespace dsv4::apps {
namespace {

std::atomic<int> interrupts = 0;
std::atomic<bool> editing = false;

void on_interrupt(int) {
  // A second one while the first is not served ends the program; the editor ends it in order, with
  // the terminal as it was.
  if (interrupts.fetch_add(1) >= 1 && !editing) _exit(130);
}

class Chat {
 public:
  // `editor`: null without a terminal.
  Chat(std::unique_ptr<ChatBackend> backend, const SamplingOptions& sampling,
       std::unique_ptr<LineEditor> editor)
      : backend_(std::move(backend)), editor_(std::move(editor)), sampling_(sampling) {}

  void run();

 private:
  std::optional<std::string> read_input();
  std::optional<std::string> read_line(const char* prompt);
  bool run_command(const std::string& line);  // false: leave
  void answer();
  JsonValue body() const;
  void save(const std::string& file) const;
  void load(const std::string& file);
  void set(const std::string& argument);
  void add(const char* role, const std::string& text);
  void drop_last_answer();
  void say(const std::string& text) const {
    if (editor_) fmt::print(stderr, "{}\n", text);
  }

  const std::unique_ptr<ChatBackend> backend_;
  const std::unique_ptr<LineEditor> editor_;
  SamplingOptions sampling_;
  std::string system_, effort_;  // effort_: off, low, high, max; empty: the model's default
  bool show_thinking_ = true;
  std::vector<JsonValue> messages_;
  std::string stats_ = "no answer yet";
};

// Nothing at the end of the input, or after two interrupts.
std::optional<std::string> Chat::read_line(const char* prompt) {
  std::string line;
  if (!editor_) {
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  for (bool interrupted = false;;) {
    editing = true;
    // The second interrupt may come before the editor reads again.
    const LineEditor::End end =
        interrupted && interrupts > 0 ? LineEditor::End::kInterrupt : editor_->read(prompt, line);
    editing = false;
    interrupts = 0;
    if (end == LineEditor::End::kText) return line;
    fmt::print(stderr, "\n");
    if (end == LineEditor::End::kEndOfInput || interrupted) return std::nullopt;
    interrupted = true;
    say("Ctrl-C again leaves.");
  }
}

std::optional<std::string> Chat::read_input() {
  if (editor_) fmt::print(stderr, "\n");
  std::optional<std::string> line = read_line("> ");
  constexpr std::string_view kQuotes = "\"\"\"";
  if (!line || !line->starts_with(kQuotes)) return line;
  std::string text = line->substr(kQuotes.size());
  while (text.find(kQuotes) == text.npos) {
    if (!(line = read_line("  "))) return std::nullopt;
    text += (text.empty() ? "" : "\n") + *line;
  }
  return text.substr(0, text.find(kQuotes));
}

void Chat::run() {
  say("Type a message; Ctrl-J begins a new line of it; /help lists commands.");
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  while (const auto input = read_input()) {
    interrupts = 0;
    if (input->find_first_not_of(" \t\r\n") == input->npos) continue;
    try {
      if (input->starts_with("/")) {
        if (!run_command(*input)) return;
      } else {
        add("user", *input);
        answer();
      }
    } catch (const Error& error) {
      if (!editor_) throw;
      say(shown_text(error.what()));
    }
  }
}

bool Chat::run_command(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string command = line.substr(1, space - 1);
  const std::string argument = line.substr(std::min(space + 1, line.size()));
  if (command == "quit" || command == "exit") return false;
  if (command == "system") {
    system_ = utf8_lossy(argument);
  } else if (command == "think") {
    if (argument == "show" || argument == "hide") {
      show_thinking_ = argument == "show";
    } else if (argument.empty() || argument == "off" || effort_of(argument)) {
      effort_ = argument;
    } else {
      fail(ErrorCode::kBadInput, "/think: want show, hide, off, low, high or max");
    }
  } else if (command == "save") {
    save(argument);
  } else if (command == "load") {
    load(argument);
  } else if (command == "retry") {
    drop_last_answer();
    if (!messages_.empty()) answer();
  } else if (command == "undo") {
    drop_last_answer();
    if (!messages_.empty()) messages_.pop_back();
  } else if (command == "edit") {
    if (argument.empty()) fail(ErrorCode::kBadInput, "/edit: want the text of your last message");
    drop_last_answer();
    if (!messages_.empty()) messages_.pop_back();
    add("user", argument);
    answer();
  } else if (command == "file") {
    add("user", read_text_file(argument));
    answer();
  } else if (command == "set") {
    set(argument);
  } else if (command == "stats") {
    say(stats_);
  } else if (command == "tokens") {
    say(backend_->count_tokens(body()));
  } else {
    say("/system TEXT  /think show|hide|off|low|high|max\n"
        "/set temperature|top_k|top_p|min_p|repeat_penalty|presence_penalty|frequency_penalty|seed "
        "VALUE\n"
        "/save FILE  /load FILE  /file FILE  /retry  /undo  /edit TEXT  /tokens  /stats  /quit\n"
        "Ctrl-J begins a new line, and \"\"\" begins and ends a text of many; the arrows bring "
        "back\n"
        "what you wrote; Ctrl-C stops an answer, twice leaves.");
  }
  return true;
}

void Chat::set(const std::string& argument) {
  const size_t space = std::min(argument.find(' '), argument.size());
  const std::string key = argument.substr(0, space);
  char* end = nullptr;
  const std::string text = argument.substr(std::min(space + 1, argument.size()));
  const double value = std::strtod(text.c_str(), &end);
  const bool number = !text.empty() && *end == '\0' && std::isfinite(value);
  SamplingOptions wanted = sampling_;
  std::optional<float>* const field = key == "temperature"         ? &wanted.temperature
                                      : key == "top_p"             ? &wanted.top_p
                                      : key == "min_p"             ? &wanted.min_p
                                      : key == "repeat_penalty"    ? &wanted.repetition_penalty
                                      : key == "presence_penalty"  ? &wanted.presence_penalty
                                      : key == "frequency_penalty" ? &wanted.frequency_penalty
                                                                   : nullptr;
  if (number && field != nullptr) {
    *field = static_cast<float>(value);
  } else if (number && value >= 0 && value < 0x1p24 && key == "top_k") {
    wanted.top_k = static_cast<int>(value);
  } else if (number && value >= 0 && value < 0x1p63 && key == "seed") {
    wanted.seed = static_cast<uint64_t>(value);
  } else {
    fail(ErrorCode::kBadInput, "/set: want the name of a sampling parameter and a number: /help");
  }
  check_sampling(wanted.applied_to({}), {}, 1);
  sampling_ = wanted;
}

void Chat::add(const char* role, const std::string& text) {
  JsonValue message = JsonValue::object();
  message.add("role", JsonValue::of_string(role));
  message.add("content", JsonValue::of_string(utf8_lossy(text)));
  messages_.push_back(std::move(message));
}

void Chat::drop_last_answer() {
  if (!messages_.empty() && messages_.back().find("role")->text == "assistant")
    messages_.pop_back();
}

JsonValue Chat::body() const {
  JsonValue out = JsonValue::object(), list = JsonValue::array();
  if (!system_.empty()) {
    JsonValue message = JsonValue::object();
    message.add("role", JsonValue::of_string("system"));
    message.add("content", JsonValue::of_string(system_));
    list.items.push_back(std::move(message));
  }
  list.items.insert(list.items.end(), messages_.begin(), messages_.end());
  out.add("messages", std::move(list));
  if (!effort_.empty()) {
    JsonValue thinking = JsonValue::object();
    thinking.add("type", JsonValue::of_string(effort_ == "off" ? "disabled" : "enabled"));
    out.add("thinking", std::move(thinking));
    if (effort_ != "off") out.add("reasoning_effort", JsonValue::of_string(effort_));
  }
  return out;
}

void Chat::answer() {
  ChatPrinter printer(editor_ != nullptr, show_thinking_);
  const auto stopped = [] { return interrupts > 0; };
  ChatAnswer answer;
  try {
    answer = backend_->answer(body(), sampling_, printer, stopped);
  } catch (const Error&) {
    printer.end();  // or the terminal stays as it is within thinking
    throw;
  }
  printer.end();
  if (sampling_.seed) ++*sampling_.seed;
  stats_ = fmt::format("{} prompt tokens, {} tokens", answer.prompt_tokens, answer.tokens);
  if (answer.tokens > 0) {
    stats_ += fmt::format(" at {:.1f} tokens/s, the first after {:.2f} s",
                          static_cast<double>(answer.tokens) / std::max(answer.rest_seconds, 1e-9),
                          answer.first_seconds);
  }
  add("assistant", printer.message.content);
  if (!printer.message.reasoning.empty()) {
    messages_.back().add("reasoning_content", JsonValue::of_string(printer.message.reasoning));
  }
}

void Chat::save(const std::string& file) const {
  std::ofstream out(file);
  out << to_json(body()) << "\n";
  if (!out.flush()) fail(ErrorCode::kIo, "cannot write {}", file);
}

void Chat::load(const std::string& file) {
  const JsonValue saved = parse_json(read_text_file(file), file);
  backend_->check(saved);
  messages_ = saved.find("messages")->items;
  system_.clear();
  say(fmt::format("{} messages", messages_.size()));
}

// ---- Options

struct ChatCommand {
  ChatModelOptions model;
  SamplingOptions sampling;
  std::string url, key;
};

std::unique_ptr<ChatBackend> backend_of(const ChatCommand& options) {
  if (options.url.empty() && options.model.model.empty())
    fail(ErrorCode::kBadInput, "give MODEL, a folder or demo, or --url of a server");
  if (options.url.empty()) return local_chat(options.model);
  return remote_chat(options.url, options.model.model,
                     options.key.empty() ? env("DSV4_API_KEY") : options.key);
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  auto options = std::make_shared<ChatCommand>();
  command->footer(
      "Example: dsv4 chat demo\n"
      "         echo Hello | dsv4 chat demo\n"
      "         dsv4 chat --url http://127.0.0.1:8000");
  add_chat_model_options(*command, options->model);
  CLI::Option* model = command->get_option("MODEL")->required(false);
  model->description("model folder, ORG/NAME, or demo; with --url the server's name of a model");
  CLI::Option* url =
      command->add_option("--url", options->url,
                          "talk with this server, through OpenAI's API, instead of a model here");
  for (CLI::Option* option : command->get_options()) {  // they are about a model here
    if (option != model && option != url && option->get_name() != "--help") url->excludes(option);
  }
  command->add_option("--key", options->key, "of that server; default: DSV4_API_KEY")->needs(url);
  add_sampling_options(*command, options->sampling);
  command->callback([options, &action] {
    action = [options] {
      const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
      refuse_processes(options->model.device, "chat");
      auto backend = backend_of(*options);
      auto editor = terminal ? std::make_unique<LineEditor>() : nullptr;
      Chat(std::move(backend), options->sampling, std::move(editor)).run();
    };
  });
}

}  // namespace dsv4::apps
