#include "dsv4/chat/messages.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "dsv4/chat/request_error.h"
#include "dsv4/chat/tools.h"

namespace dsv4 {
namespace {

// Two messages of one speaker; an empty one leaves no trace.
void append_message(std::string& text, std::string_view next) {
  if (!text.empty() && !next.empty()) text += "\n\n";
  text += next;
}

bool mentions_json(std::string_view text) {
  constexpr std::string_view kWord = "json";
  const auto same = [](char a, char b) { return (a | 0x20) == b; };
  return std::search(text.begin(), text.end(), kWord.begin(), kWord.end(), same) != text.end();
}

class MessageReader {
 public:
  MessageReader(const Field& body, const ChatOptions& options, Conversation& conversation)
      : body_(body), list_(body.at("messages")), options_(options), out_(conversation) {}

  void run();

 private:
  void read(const Field& message);
  void read_assistant(const Field& message);
  void read_result(const Field& message);
  void end_user_turn();
  void check_all_answered(const Field& message);
  bool is_prefix(const Field& message) const;

  const Field body_, list_;
  const ChatOptions& options_;
  Conversation& out_;
  size_t index_ = 0;  // of the message that is read
  bool json_mentioned_ = false;

  std::vector<UserBlock> blocks_;  // of the user turn that is open
  std::vector<ToolCall> calls_;    // of the latest assistant message that has some
  // Without lenient_tools: the ids that the next messages have to answer, and those that they have.
  std::unordered_set<std::string> unanswered_, answered_;
};

void MessageReader::run() {
  if (list_.list() == 0) refuse("messages", "Empty input messages");
  for (index_ = 0; index_ < list_.list(); ++index_) read(list_.at(index_));
  check_all_answered(list_);
  end_user_turn();
  if (body_.at("continue_final_message").boolean(false) && !out_.continues)
    refuse("continue_final_message", "the last message must be the assistant's");
  if (out_.format.kind == ResponseFormat::Kind::kJsonObject && !json_mentioned_) {
    refuse("messages",
           "Prompt must contain the word 'json' in some form to use 'response_format' of type "
           "'json_object'.");
  }
}

void MessageReader::read(const Field& message) {
  const std::string& role = message.at("role").string();
  if (message.at("prefix").boolean(false) && !is_prefix(message)) {
    refuse(message.path() + ".prefix",
           "prefix is for the last message only, and that must be the assistant's");
  }
  for (const std::string& text : message.at("content").texts())
    json_mentioned_ = json_mentioned_ || mentions_json(text);
  if (role == "tool") return read_result(message);
  check_all_answered(message);
  const std::string text = message.at("content").text();
  if (role == "system" || role == "developer") {
    append_message(out_.system, text);
  } else if (role == "user") {
    const bool joins = !blocks_.empty() && !blocks_.back().is_result;
    if (!joins) blocks_.emplace_back();
    append_message(blocks_.back().text, text);
  } else if (role == "assistant") {
    end_user_turn();
    read_assistant(message);
  } else if (role == "latest_reminder") {
    end_user_turn();
    out_.turns.push_back({.kind = ChatTurn::Kind::kReminder, .text = text});
  } else {
    refuse(message.path() + ".role",
           "want system, developer, user, assistant, tool or latest_reminder");
  }
}

bool MessageReader::is_prefix(const Field& message) const {
  const bool last = index_ + 1 == list_.list();
  return last && message.at("role").string() == "assistant" &&
         (message.at("prefix").boolean(false) || body_.at("continue_final_message").boolean(false));
}

void MessageReader::read_assistant(const Field& message) {
  ChatTurn turn{.kind = ChatTurn::Kind::kAssistant, .text = message.at("content").text()};
  Field reasoning = message.at("reasoning_content");
  if (const Field alias = message.at("reasoning"); !reasoning.present() && alias.present())
    reasoning = alias;  // as vLLM names it
  if (message.at("function_call").present())
    refuse(message.path() + ".function_call", "is not supported; want tool_calls");
  if (reasoning.present()) turn.reasoning = reasoning.string();
  turn.calls = read_tool_calls(message.at("tool_calls"), options_.lenient_tools);
  if (is_prefix(message)) {
    const Field tools = body_.at("tools");
    if (tools.present() && tools.list() > 0)
      refuse(message.path() + ".prefix", "Function call should not be used with prefix");
    out_.continues = true;
  }
  const bool shown = out_.thinking && (!out_.tools.empty() || !out_.drop_thinking);
  if (options_.require_reasoning && shown && !out_.continues && !turn.reasoning) {
    refuse(reasoning.path(),
           "Missing reasoning_content: thinking mode needs that of every assistant message");
  }
  if (!turn.calls.empty()) {
    calls_ = turn.calls;
    answered_.clear();
    unanswered_.clear();
    if (!options_.lenient_tools) {
      for (const ToolCall& call : calls_) unanswered_.insert(call.id);
    }
  }
  out_.turns.push_back(std::move(turn));
}

void MessageReader::read_result(const Field& message) {
  const Field id = message.at("tool_call_id");
  const std::string call_id = options_.lenient_tools ? id.string_or("") : id.string();
  if (!options_.lenient_tools) {
    if (answered_.contains(call_id))
      refuse(id.path(), "Duplicate value for 'tool_call_id' of '{}'", call_id);
    if (unanswered_.empty() && answered_.empty()) {
      refuse(message.path(),
             "messages with role 'tool' must be a response to a preceding message with "
             "'tool_calls'");
    }
    if (unanswered_.erase(call_id) == 0) {
      refuse(id.path(), "'tool_call_id' of '{}' not found in 'tool_calls' of previous message",
             call_id);
    }
    answered_.insert(call_id);
  }
  blocks_.push_back(result_block(call_id, message.at("content").text()));
}

// Another role than tool, or the end, comes after a message with calls.
void MessageReader::check_all_answered(const Field& message) {
  answered_.clear();
  if (unanswered_.empty()) return;
  std::string ids;
  for (const ToolCall& call : calls_) {
    if (unanswered_.contains(call.id)) ids += (ids.empty() ? "" : ", ") + call.id;
  }
  refuse(message.path(),
         "An assistant message with 'tool_calls' must be followed by tool messages responding to "
         "each 'tool_call_id'. The following tool_call_ids did not have response messages: {}",
         ids);
}

void MessageReader::end_user_turn() {
  if (blocks_.empty()) return;
  sort_results(calls_, blocks_);
  std::vector<std::string> texts;
  for (UserBlock& block : blocks_) texts.push_back(std::move(block.text));
  blocks_.clear();
  out_.turns.push_back({.kind = ChatTurn::Kind::kUser, .text = join_blocks(texts)});
}

}  // namespace

UserBlock result_block(std::string call_id, std::string_view text) {
  return {true, std::move(call_id), fmt::format("<tool_result>{}</tool_result>", text)};
}

void sort_results(const std::vector<ToolCall>& calls, std::vector<UserBlock>& blocks) {
  std::unordered_map<std::string_view, size_t> order;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].id.empty()) order[calls[i].id] = i;
  }
  const auto rank = [&](const UserBlock& block) {
    const auto found = order.find(block.call_id);
    return found == order.end() ? 0 : found->second;
  };
  std::vector<UserBlock> results;
  for (const UserBlock& block : blocks) {
    if (block.is_result) results.push_back(block);
  }
  std::stable_sort(results.begin(), results.end(),
                   [&](const UserBlock& a, const UserBlock& b) { return rank(a) < rank(b); });
  size_t next = 0;
  for (UserBlock& block : blocks) {
    if (block.is_result) block = std::move(results[next++]);
  }
}

void read_messages(const Field& body, const ChatOptions& options, Conversation& conversation) {
  MessageReader(body, options, conversation).run();
}

}  // namespace dsv4
