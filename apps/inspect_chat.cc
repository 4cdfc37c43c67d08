#include "apps/inspect.h"

#include <charconv>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/chat/chat_message.h"
#include "dsv4/chat/encoder_level.h"
#include "dsv4/chat/model_folder.h"
#include "dsv4/chat/output_parser.h"
#include "dsv4/chat/render.h"
#include "dsv4/chat/request.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4::apps {
namespace {

using Json = nlohmann::ordered_json;

ChatOptions chat_options(const InspectChatOptions& options, const std::string& folder) {
  ChatOptions chat = chat_options_of_folder(folder, options.effort_profile, options.thinking);
  chat.lenient_tools = options.lenient_tools;
  chat.require_reasoning = options.require_reasoning;
  return chat;
}

Json error_json(int status, const std::string& message) {
  return {{"error", {{"status", status}, {"message", message}}}};
}

// One object per line from standard input; blank lines are skipped.
template <class Answer>
void for_each_line(const Answer& answer) {
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    Json out;
    try {
      const JsonValue body = parse_json(line, fmt::format("line {}", number));
      Field(&body, "").object();
      out = answer(body);
    } catch (const RequestError& error) {
      out = error_json(error.status(), error.what());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadInput) throw;
      out = error_json(400, error.what());
    }
    fmt::print("{}\n", out.dump(-1, ' ', false, Json::error_handler_t::replace));
    std::fflush(stdout);
  }
}

Prompt prompt_of(const JsonValue& body_json, const ChatOptions& options) {
  const Field body(&body_json, "");
  const std::string level = body.at("level").string_or("api");
  if (level == "encoder") return render_encoder_level(body_json, options);
  if (level != "api") refuse("level", "want api or encoder");
  if (!body.at("messages").present() && body.at("prompt").present())
    return render_completion(body_json);
  return render(read_chat_request(body_json, options));
}

int64_t integer(const Field& field) {
  int64_t value = 0;
  const std::string& digits = field.json().text;
  const char* end = digits.data() + digits.size();
  const bool valid = field.json().is(JsonValue::Kind::kInteger) &&
                     std::from_chars(digits.data(), end, value).ptr == end;
  if (!valid) refuse(field.path(), "want a token id");
  return value;
}

// `tools`: true, or the definitions, of which name and properties count.
void read_declared(const Field& tools, ParserOptions& options) {
  if (!tools.present()) return;
  if (tools.json().is_bool()) {
    options.tools = tools.json().boolean;
    return;
  }
  options.tools = tools.list() > 0;
  for (const JsonValue& tool : tools.json().items) {
    const JsonValue* function = tool.find("function");
    if (function == nullptr) continue;
    const Field definition(function, tools.path());
    auto& keys = options.declared[definition.at("name").string()];
    const JsonValue* parameters = function->find("parameters");
    const JsonValue* properties = parameters ? parameters->find("properties") : nullptr;
    if (properties == nullptr) continue;
    for (const auto& [key, value] : properties->members) keys.insert(key);
  }
}

ParserOptions parser_options(const Field& body) {
  ParserOptions options;
  if (body.at("thinking").boolean(false)) options.stage = OutputStage::kReason;
  if (body.at("start_tools").boolean(false)) options.stage = OutputStage::kBlock;
  if (const Field stage = body.at("stage"); stage.present()) {
    const std::string& word = stage.string();
    for (const OutputStage known :
         {OutputStage::kReason, OutputStage::kContent, OutputStage::kBlock}) {
      if (word == name(known)) options.stage = known;
    }
    if (word != name(options.stage)) refuse("stage", "want reason, content or block");
  }
  options.continues = body.at("continues").boolean(false);
  options.max_calls = body.at("parallel_tool_calls").boolean(true) ? 0 : 1;
  read_declared(body.at("tools"), options);
  const Field stops = body.at("stops");
  for (size_t i = 0; stops.present() && i < stops.list(); ++i) {
    options.stops.push_back(stops.at(i).string());
    if (options.stops.back().empty()) refuse(stops.at(i).path(), "is empty");
  }
  return options;
}

// Feeds the parser; true once the end of the sentence has come.
class OutputReader {
 public:
  OutputReader(OutputParser& parser, const Tokenizer& tokenizer, const MarkerIds& markers)
      : parser_(parser), tokenizer_(tokenizer), markers_(markers) {}

  void text(std::string_view piece) {
    scanner_.push(
        piece, [this](std::string_view plain) { on_text(plain); },
        [this](Marker marker) { on_marker(marker); });
  }
  void end_text() {
    scanner_.finish([this](std::string_view plain) { on_text(plain); },
                    [this](Marker marker) { on_marker(marker); });
  }
  void id(const Field& field) {
    const int64_t id = integer(field);
    if (id < 0 || id >= tokenizer_.vocab_size())
      refuse(field.path(), "id {} of a vocabulary of {}", id, tokenizer_.vocab_size());
    const auto token = static_cast<int32_t>(id);
    if (const auto marker = markers_.marker(token)) return on_marker(*marker);
    on_text(tokenizer_.token_bytes(token));
  }

 private:
  void on_text(std::string_view text) {
    if (!ended_) parser_.text(text);
  }
  void on_marker(Marker marker) {
    ended_ = ended_ || marker == Marker::kEos;
    if (!ended_) parser_.marker(marker);
  }

  OutputParser& parser_;
  const Tokenizer& tokenizer_;
  const MarkerIds& markers_;
  MarkerScanner scanner_;
  bool ended_ = false;
};

void read_output(const Field& body, OutputReader& reader) {
  const Field output = body.at("output"), pieces = body.at("pieces"), ids = body.at("ids");
  if (output.present() + pieces.present() + ids.present() != 1)
    refuse("", "want one of output, pieces and ids");
  if (output.present()) reader.text(output.string());
  for (size_t i = 0; pieces.present() && i < pieces.list(); ++i) reader.text(pieces.at(i).string());
  for (size_t i = 0; ids.present() && i < ids.list(); ++i) reader.id(ids.at(i));
  reader.end_text();
}

OutputEnd output_end(const Field& finish) {
  const std::string word = finish.string_or("stop");
  if (word == "stop" || word == "eos") return OutputEnd::kModel;
  if (word != "length" && word != "deadline" && word != "cancel")
    refuse("finish", "want stop, length, deadline or cancel");
  return OutputEnd::kLimit;
}

}  // namespace

void inspect_prompt(const InspectChatOptions& options) {
  const std::string folder = find_model(options.model);
  const ChatOptions chat = chat_options(options, folder);
  const Tokenizer tokenizer = load_tokenizer(folder);
  const MarkerIds markers(tokenizer);
  for_each_line([&](const JsonValue& body) -> Json {
    const Prompt prompt = prompt_of(body, chat);
    return {{"prompt", prompt.text()},
            {"ids", encode(prompt, markers, tokenizer.text_encoder())},
            {"special", prompt.marker_spans()},
            {"stage", name(prompt.stage)}};
  });
}

void inspect_completion(const InspectChatOptions& options) {
  const Tokenizer tokenizer = load_tokenizer(find_model(options.model));
  const MarkerIds markers(tokenizer);
  for_each_line([&](const JsonValue& body_json) -> Json {
    const Field body(&body_json, "");
    ChatMessage message;
    OutputParser parser(parser_options(body), message);
    const OutputEnd end = output_end(body.at("finish"));
    OutputReader reader(parser, tokenizer, markers);
    read_output(body, reader);
    const FinishReason reason = parser.finish(end);
    Json calls = Json::array();
    for (const ChatMessage::Call& call : message.calls)
      calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
    return {{"reasoning_content", message.reasoning},
            {"content", message.content},
            {"tool_calls", calls},
            {"finish_reason", name(reason)}};
  });
}

}  // namespace dsv4::apps
