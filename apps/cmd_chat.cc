// dsv4 chat MODEL: a conversation in the terminal (docs/spec/serving.md 9). Reads lines from
// standard input; with a pipe instead of a terminal it prints the answers only.
//
// Control bytes that the model writes are never printed: no answer can move the cursor, change the
// title or read the clipboard.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>

#include "apps/chat_model.h"
#include "apps/commands.h"
#include "apps/sampling_options.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/chat_message.h"
#include "dsv4/chat/output_parser.h"
#include "dsv4/chat/render.h"
#include "dsv4/chat/request_error.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> interrupts = 0;

void on_interrupt(int) {
  // A second one while the first is not served ends the program.
  if (interrupts.fetch_add(1) >= 1) _exit(130);
}

// Without control characters except newlines and tabs.
std::string shown_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) {
      ++i;  // both of its bytes
    } else if ((byte >= 0x20 && byte != 0x7f) || byte == '\n' || byte == '\t') {
      out += text[i];
    }
  }
  return out;
}

// Prints an answer as it comes.
class ChatPrinter : public OutputSink {
 public:
  ChatPrinter(bool terminal, bool show_thinking)
      : terminal_(terminal), show_thinking_(show_thinking) {}

  void on_reasoning(std::string_view text) override {
    message.on_reasoning(text);
    if (!show_thinking_) {
      if (terminal_ && !dim_) print("\033[2m(thinking)\033[0m\n");
      dim_ = true;
      return;
    }
    if (terminal_ && !dim_) print("\033[2m");
    dim_ = true;
    print(shown_text(text));
  }
  void on_content(std::string_view text) override {
    end_thinking();
    message.on_content(text);
    print(shown_text(text));
  }
  void on_call(const std::string& name) override {
    end_thinking();
    message.on_call(name);
    print("\n[call " + shown_text(name) + " ");
  }
  void on_arguments(std::string_view json) override {
    message.on_arguments(json);
    print(shown_text(json));
  }
  void on_call_end() override {
    message.on_call_end();
    print("]\n");
  }
  void end() {
    end_thinking();
    print("\n");
  }

  ChatMessage message;

 private:
  void end_thinking() {
    if (!dim_) return;
    dim_ = false;
    if (terminal_ && show_thinking_) print("\033[0m");
    if (show_thinking_) print("\n\n");
  }
  static void print(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      fail(ErrorCode::kIo, "cannot write to standard output");
  }

  const bool terminal_, show_thinking_;
  bool dim_ = false;
};

// Feeds the parser with the engine's tokens.
class TokenReader : public TokenSink {
 public:
  TokenReader(OutputParser& parser, const ServedModel& text) : parser_(parser), text_(text) {}
  void on_token(RequestId, const Sampled& sampled) override {
    const int32_t token = sampled.id;
    if (tokens++ == 0) first = Clock::now();
    if (const auto marker = text_.markers.marker(token)) {
      parser_.marker(*marker);
    } else {
      parser_.text(text_.tokenizer->token_bytes(token));
    }
  }
  void on_finish(RequestId, Finish why) override { finish = why; }

  int64_t tokens = 0;
  Clock::time_point first;
  std::optional<Finish> finish;

 private:
  OutputParser& parser_;
  const ServedModel& text_;
};

class Chat {
 public:
  Chat(const ChatModelOptions& options, const SamplingOptions& sampling, bool terminal)
      : model_(load_chat_model(options)),
        terminal_(terminal),
        sampling_(sampling.applied_to(model_.text->sampling)),
        logit_bias_(sampling.logit_bias) {
    sampling_.seed = sampling.seed ? *sampling.seed : std::random_device{}();
  }

  void run();

 private:
  std::optional<std::string> read_input();
  bool run_command(const std::string& line);  // false: leave
  void answer();
  JsonValue body() const;
  void save(const std::string& file) const;
  void load(const std::string& file);
  void set(const std::string& argument);
  void add(const char* role, std::string text);
  void drop_last_answer();
  void say(const std::string& text) const {
    if (terminal_) fmt::print(stderr, "{}\n", text);
  }

  ChatModel model_;
  const bool terminal_;
  SamplingParams sampling_;
  const std::vector<LogitBias> logit_bias_;
  std::string system_, effort_;  // effort_: off, low, high, max; empty: the model's default
  bool show_thinking_ = true;
  std::vector<JsonValue> messages_;
  std::string stats_ = "no answer yet";
};

std::optional<std::string> Chat::read_input() {
  if (terminal_) fmt::print(stderr, "\n> ");
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  constexpr std::string_view kQuotes = "\"\"\"";
  if (!line.starts_with(kQuotes)) return line;
  std::string text = line.substr(kQuotes.size());
  while (text.find(kQuotes) == text.npos) {
    if (!std::getline(std::cin, line)) return std::nullopt;
    text += (text.empty() ? "" : "\n") + line;
  }
  return text.substr(0, text.find(kQuotes));
}

void Chat::run() {
  say("Type a message; \"\"\" begins and ends one of many lines; /help lists commands.");
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
      if (!terminal_) throw;
      say(error.what());
    }
  }
}

bool Chat::run_command(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string command = line.substr(1, space - 1);
  const std::string argument = line.substr(std::min(space + 1, line.size()));
  if (command == "quit" || command == "exit") return false;
  if (command == "system") {
    system_ = argument;
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
    const Prompt prompt = render(read_chat_request(body(), model_.text->chat));
    say(fmt::format("{} of {} tokens",
                    encode(prompt, model_.text->markers, model_.text->text).size(),
                    model_.text->limits.context));
  } else {
    say("/system TEXT  /think show|hide|off|low|high|max\n"
        "/set temperature|top_k|top_p|min_p|repeat_penalty|presence_penalty|frequency_penalty|seed "
        "VALUE\n"
        "/save FILE  /load FILE  /file FILE  /retry  /undo  /edit TEXT  /tokens  /stats  /quit\n"
        "Ctrl-C stops an answer, twice leaves.");
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
  SamplingParams wanted = sampling_;
  float* const field = key == "temperature"         ? &wanted.temperature
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
  check_sampling(wanted, logit_bias_, model_.text->limits.vocab_size);
  sampling_ = wanted;
}

void Chat::add(const char* role, std::string text) {
  JsonValue message = JsonValue::object();
  message.add("role", JsonValue::of_string(role));
  message.add("content", JsonValue::of_string(std::move(text)));
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
  const ServedModel& text = *model_.text;
  const Conversation conversation = read_chat_request(body(), text.chat);
  const Prompt prompt = render(conversation, &text.replay);
  const std::vector<int32_t> ids = encode(prompt, text.markers, text.text);
  const int64_t room = text.limits.context - static_cast<int64_t>(ids.size());
  if (room < 1) {
    fail(ErrorCode::kBadInput, "the conversation has {} tokens, the context {}: /undo or leave",
         ids.size(), text.limits.context);
  }
  GenerateParams params{.sampling = sampling_,
                        .max_new_tokens = std::min(
                            room, default_max_tokens(conversation.thinking, conversation.effort)),
                        .stop = text.limits.eos,
                        .logit_bias = logit_bias_};
  ChatPrinter printer(terminal_, show_thinking_);
  OutputParser parser({.stage = prompt.stage, .continues = prompt.continues}, printer);
  TokenReader reader(parser, text);
  const auto begin = Clock::now();
  const RequestId request = model_.engine->submit(ids, params, reader);
  ++sampling_.seed;
  while (!reader.finish) {
    if (interrupts > 0) model_.engine->cancel(request);
    model_.engine->step();
  }
  parser.finish(*reader.finish == Finish::kStop ? OutputEnd::kModel : OutputEnd::kLimit);
  printer.end();
  const double seconds = std::chrono::duration<double>(Clock::now() - reader.first).count();
  stats_ = fmt::format("{} prompt tokens, {} tokens at {:.1f} tokens/s, the first after {:.2f} s",
                       ids.size(), reader.tokens,
                       static_cast<double>(reader.tokens) / std::max(seconds, 1e-9),
                       std::chrono::duration<double>(reader.first - begin).count());
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
  read_chat_request(saved, model_.text->chat);  // checks it
  messages_ = saved.find("messages")->items;
  system_.clear();
  say(fmt::format("{} messages", messages_.size()));
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  auto options = std::make_shared<ChatModelOptions>();
  auto sampling = std::make_shared<SamplingOptions>();
  command->footer("Example: dsv4 chat demo\n         echo Hello | dsv4 chat demo");
  add_chat_model_options(*command, *options);
  add_sampling_options(*command, *sampling);
  command->callback([options, sampling, &action] {
    action = [options, sampling] {
      const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
      Chat(*options, *sampling, terminal).run();
    };
  });
}

}  // namespace dsv4::apps
