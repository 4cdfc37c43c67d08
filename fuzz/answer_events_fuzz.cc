// What a model writes, as the server-sent events of the API that the first byte picks: bytes below
// 0xf8 are themselves, the others markers. Every event is JSON in its frame, numbers have no gaps,
// and blocks and items open and close in order, wherever the output ends.

#include "dsv4/server/choice.h"
#include "dsv4/server/json_text.h"
#include "fuzz/fuzz.h"
#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

constexpr Marker kMarkers[] = {Marker::kThink, Marker::kThinkEnd, Marker::kDsml,
                               Marker::kDsml,  Marker::kEos,      Marker::kUser,
                               Marker::kBos,   Marker::kAssistant};

const ServedModel& model() {
  static const auto served = [] {
    auto one = std::make_unique<ServedModel>(
        std::make_shared<const Tokenizer>(Tokenizer::parse(test::marker_tokenizer_json(), "test")));
    one->names = {"m"};
    one->limits = {.vocab_size = one->tokenizer->vocab_size(), .context = 65536};
    return one;
  }();
  return *served;
}

int32_t token_of(uint8_t byte) {
  return byte < 0xf8 ? byte : model().markers.require(kMarkers[byte - 0xf8]);
}

// A request for a stream with what the bits want.
Json request_of(Api api, uint8_t bits) {
  const bool tools = bits & 4, thinking = bits & 8, more = bits & 16;
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "string"}}}}}};
  const Json user = Json::array({{{"role", "user"}, {"content", "x"}}});
  Json body = {{"stream", true}, {"seed", 1}};
  if (api == Api::kCompletions) {
    body["prompt"] = "x";
    if (more) body.update({{"n", 2}, {"logprobs", 1}, {"stop", "ab"}});
  } else if (api == Api::kResponses) {
    body.update({{"input", "x"}, {"reasoning", {{"effort", thinking ? "low" : "none"}}}});
    if (tools) {
      body["tools"] = {{{"type", "function"}, {"name", "f"}, {"parameters", schema}},
                       {{"type", "custom"}, {"name", "c"}}};
    }
    if (more) body["include"] = {"reasoning.encrypted_content"};
  } else {
    body.update({{"messages", user}, {"thinking", {{"type", thinking ? "enabled" : "disabled"}}}});
    const bool chat = api == Api::kChat;
    if (tools && chat)
      body["tools"] = {
          {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}};
    if (tools && !chat) body["tools"] = {{{"name", "f"}, {"input_schema", schema}}};
    if (more) body[chat ? "stop" : "stop_sequences"] = {"ab"};
    if (more && chat)
      body.update({{"n", 2}, {"logprobs", true}, {"stream_options", {{"include_usage", true}}}});
  }
  return body;
}

// Checks events as they leave.
class EventChecker {
 public:
  explicit EventChecker(Api api) : api_(api) {}

  // Whole events, since a piece is flushed to the client as it is.
  void take(std::string piece) {
    while (!piece.empty()) {
      const size_t end = piece.find("\n\n");
      fuzz::require(end != piece.npos);
      event(piece.substr(0, end));
      piece.erase(0, end + 2);
    }
  }
  // `failed`: the stream ended with an error.
  void finish(bool failed) const {
    fuzz::require(open_ < 0 || failed);
    fuzz::require(ended_);
  }

 private:
  void event(std::string block) {
    fuzz::require(!ended_);
    std::string name;
    if (block.starts_with("event: ")) {
      name = block.substr(7, block.find('\n') - 7);
      block.erase(0, block.find('\n') + 1);
    }
    fuzz::require(block.starts_with("data: ") && block.find('\n') == block.npos);
    const std::string data = block.substr(6);
    if (data == "[DONE]") {
      fuzz::require(api_ == Api::kChat || api_ == Api::kCompletions);
      ended_ = true;
      return;
    }
    const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    fuzz::require(json.is_object());
    if (api_ == Api::kMessages) return messages_event(name, json);
    if (api_ == Api::kResponses) return responses_event(name, json);
    fuzz::require(name.empty());
    if (json.contains("error")) ended_ = true;
  }

  void messages_event(const std::string& name, const Json& json) {
    fuzz::require(json["type"] == name);
    if (name == "content_block_start") {
      fuzz::require(open_ < 0 && json["index"] == blocks_);
      open_ = blocks_++;
    } else if (name == "content_block_delta") {
      fuzz::require(json["index"] == open_);
    } else if (name == "content_block_stop") {
      fuzz::require(json["index"] == open_);
      open_ = -1;
    }
    ended_ = name == "message_stop" || name == "error";
  }

  void responses_event(const std::string& name, const Json& json) {
    fuzz::require(json["type"] == name && json["sequence_number"] == sequence_++);
    if (name == "response.output_item.added") {
      fuzz::require(open_ < 0 && json["output_index"] == blocks_);
      open_ = blocks_++;
    } else if (name == "response.output_item.done") {
      fuzz::require(json["output_index"] == open_);
      open_ = -1;
    } else if (json.contains("output_index")) {
      fuzz::require(json["output_index"] == open_);
    }
    ended_ =
        name == "response.completed" || name == "response.incomplete" || name == "response.failed";
  }

  const Api api_;
  int64_t open_ = -1, blocks_ = 0, sequence_ = 0;
  bool ended_ = false;
};

void write_stream(Api api, uint8_t bits, uint8_t ending, std::string_view output) {
  const std::string key(32, 'k');
  Prepared prepared = prepare(api, request_of(api, bits).dump(), model(), key);
  Usage usage;
  AnswerContext context = prepared.answer;
  context.usage = &usage;
  const size_t count = context.choices;
  const auto writer = make_writer(api, std::move(context));
  EventChecker checker(api);
  writer->begin();
  std::vector<std::unique_ptr<Choice>> choices;
  for (size_t k = 0; k < count; ++k)
    choices.push_back(std::make_unique<Choice>(k, prepared, model(), *writer, usage));
  for (const char c : output) {
    for (const auto& choice : choices)
      choice->on_token({.id = token_of(static_cast<uint8_t>(c)), .logprob = -1.f});
    checker.take(writer->take());
  }
  const bool failed = ending % 4 == 3;
  if (failed) {
    writer->fail({.status = 500, .message = "the engine failed"});
  } else {
    for (const auto& choice : choices) {
      if (ending % 4 == 2) choice->end_at_deadline();
      choice->on_engine_finish(ending % 4 == 0 ? Finish::kStop : Finish::kLength);
    }
    writer->end();
  }
  checker.take(writer->take());
  checker.finish(failed);
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  dsv4::write_stream(static_cast<dsv4::Api>(data[0] % 4), data[0], data[1],
                     dsv4::fuzz::text(data + 2, size - 2));
  return 0;
}
