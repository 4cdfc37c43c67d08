// What a model writes, as the server-sent events of the API that the first byte picks: bytes below
// 0xf8 are themselves, the others markers, and some control bytes whole tags, so that a short input
// holds a call. Every event is JSON in its frame, numbers have no gaps, and blocks and items open
// and close in order, wherever the output ends.

#include <map>

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

constexpr uint8_t kFirstTag = 0x0e;
constexpr std::string_view kTags[] = {"\n\n<\xfatool_calls>\n",
                                      "<\xfainvoke name=\"f\">\n",
                                      "<\xfainvoke name=\"c\">\n",
                                      "<\xfaparameter name=\"a\" string=\"true\">",
                                      "<\xfaparameter name=\"a\" string=\"false\">",
                                      "<\xfaparameter name=\"input\" string=\"true\">",
                                      "</\xfaparameter>\n",
                                      "</\xfainvoke>\n",
                                      "</\xfatool_calls>"};

std::string with_tags(std::string_view output) {
  std::string text;
  for (const char c : output) {
    const size_t tag = static_cast<uint8_t>(c) - size_t{kFirstTag};
    if (tag < std::size(kTags)) {
      text += kTags[tag];
    } else {
      text += c;
    }
  }
  return text;
}

int32_t token_of(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return byte < 0xf8 ? test::byte_token(c) : model().markers.require(kMarkers[byte - 0xf8]);
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

// It does not depend on what the model writes, so each is made once.
const Prepared& prepared_request(Api api, uint8_t bits) {
  static std::map<std::pair<Api, uint8_t>, Prepared> known;
  const auto [found, is_new] = known.try_emplace({api, bits & (4 | 8 | 16)});
  if (is_new) {
    const std::string key(32, 'k');
    found->second = prepare(api, request_of(api, bits).dump(), model(), key);
  }
  return found->second;
}

// The values at the top of an event that the checks below need; a whole tree would cost most of the
// time.
struct EventFields : nlohmann::json_sax<Json> {
  explicit EventFields(const std::string& data) {
    fuzz::require(data.starts_with('{') && Json::sax_parse(data, this));
  }

  std::string type;
  std::map<std::string, int64_t> numbers;
  bool error = false;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t value) override { return number(value); }
  bool number_unsigned(uint64_t value) override { return number(static_cast<int64_t>(value)); }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string& text) override {
    if (depth == 1 && last_key == "type") type = text;
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return move(1); }
  bool end_object() override { return move(-1); }
  bool start_array(size_t) override { return move(1); }
  bool end_array() override { return move(-1); }
  bool key(std::string& text) override {
    if (depth != 1) return true;
    last_key = text;
    error |= text == "error";
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

  bool number(int64_t value) {
    if (depth == 1) numbers[last_key] = value;
    return true;
  }
  bool move(int levels) {
    depth += levels;
    return true;
  }

  std::string last_key;
  int depth = 0;
};

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
    const EventFields fields(data);
    if (api_ == Api::kMessages) return messages_event(name, fields);
    if (api_ == Api::kResponses) return responses_event(name, fields);
    fuzz::require(name.empty());
    if (fields.error) ended_ = true;
  }

  void messages_event(const std::string& name, const EventFields& fields) {
    fuzz::require(fields.type == name);
    if (name == "content_block_start") {
      fuzz::require(open_ < 0 && fields.numbers.at("index") == blocks_);
      open_ = blocks_++;
    } else if (name == "content_block_delta") {
      fuzz::require(fields.numbers.at("index") == open_);
    } else if (name == "content_block_stop") {
      fuzz::require(fields.numbers.at("index") == open_);
      open_ = -1;
    }
    ended_ = name == "message_stop" || name == "error";
  }

  void responses_event(const std::string& name, const EventFields& fields) {
    fuzz::require(fields.type == name && fields.numbers.at("sequence_number") == sequence_++);
    if (name == "response.output_item.added") {
      fuzz::require(open_ < 0 && fields.numbers.at("output_index") == blocks_);
      open_ = blocks_++;
    } else if (name == "response.output_item.done") {
      fuzz::require(fields.numbers.at("output_index") == open_);
      open_ = -1;
    } else if (fields.numbers.contains("output_index")) {
      fuzz::require(fields.numbers.at("output_index") == open_);
    }
    ended_ =
        name == "response.completed" || name == "response.incomplete" || name == "response.failed";
  }

  const Api api_;
  int64_t open_ = -1, blocks_ = 0, sequence_ = 0;
  bool ended_ = false;
};

void write_stream(Api api, uint8_t bits, uint8_t ending, std::string_view output) {
  const Prepared& prepared = prepared_request(api, bits);
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
  for (const char c : with_tags(output)) {
    for (const auto& choice : choices) choice->on_token({.id = token_of(c), .logprob = -1.f});
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
