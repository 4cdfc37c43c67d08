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

// Each is a token, so that a short input holds a call: events are what costs time.
constexpr std::string_view kWords[] = {"\n\n<",
                                       "</",
                                       "tool_calls>\n",
                                       "invoke name=\"f\">\n",
                                       "invoke name=\"c\">\n",
                                       "parameter name=\"a\" string=\"true\">",
                                       "parameter name=\"a\" string=\"false\">",
                                       "parameter name=\"input\" string=\"true\">",
                                       "parameter>\n",
                                       "invoke>\n",
                                       "tool_calls>",
                                       "some words of text"};
constexpr int32_t kFirstWord = 256 + static_cast<int32_t>(kNumMarkers);

const ServedModel& model() {
  static const auto served = [] {
    Json tokenizer = Json::parse(test::marker_tokenizer_json());
    for (size_t i = 0; i < std::size(kWords); ++i)
      tokenizer["model"]["vocab"][token_text_of_bytes(kWords[i])] = kFirstWord + i;
    auto one = std::make_unique<ServedModel>(
        std::make_shared<const Tokenizer>(Tokenizer::parse(tokenizer.dump(), "test")));
    one->names = {"m"};
    one->limits = {.vocab_size = one->tokenizer->vocab_size(), .context = 65536};
    return one;
  }();
  return *served;
}

// A byte from 0x0e on: the first word, where there is one, else "<"; DSML; the second.
constexpr uint8_t kFirstTag = 0x0e;
constexpr std::pair<int32_t, int32_t> kTags[] = {{0, 2},  {-1, 3}, {-1, 4}, {-1, 5}, {-1, 6},
                                                 {-1, 7}, {1, 8},  {1, 9},  {1, 10}};
constexpr uint8_t kText = kFirstTag + std::size(kTags);

std::vector<int32_t> tokens_of(std::string_view output) {
  std::vector<int32_t> tokens;
  for (const char c : output) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0xf8) {
      tokens.push_back(model().markers.require(kMarkers[byte - 0xf8]));
    } else if (byte == kText) {
      tokens.push_back(kFirstWord + static_cast<int32_t>(std::size(kWords)) - 1);
    } else if (byte >= kFirstTag && byte < kText) {
      const auto [before, word] = kTags[byte - kFirstTag];
      tokens.insert(tokens.end(), {before < 0 ? test::byte_token('<') : kFirstWord + before,
                                   model().markers.require(Marker::kDsml), kFirstWord + word});
    } else {
      tokens.push_back(test::byte_token(c));
    }
  }
  return tokens;
}

// Ollama's body for the same.
Json ollama_request_of(Api api, bool tools, bool thinking, bool more) {
  Json body = {{"think", thinking}};
  if (more) body.update({{"options", {{"stop", {"ab"}}}}, {"logprobs", true}});
  if (api == Api::kOllamaGenerate) {
    body["prompt"] = "x";
    return body;
  }
  body["messages"] = Json::array({{{"role", "user"}, {"content", "x"}}});
  if (tools) body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  return body;
}

// A request for a stream with what the bits want.
Json request_of(Api api, uint8_t bits) {
  const bool tools = bits & 4, thinking = bits & 8, more = bits & 16;
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "string"}}}}}};
  const Json user = Json::array({{{"role", "user"}, {"content", "x"}}});
  if (is_ollama(api)) return ollama_request_of(api, tools, thinking, more);
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
    if (is_ollama(api_)) return take_lines(piece);
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
  // Objects, a line each.
  void take_lines(const std::string& piece) {
    fuzz::require(piece.empty() || piece.ends_with('\n'));
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = piece.find('\n', begin);
      const Json line = Json::parse(piece.substr(begin, end - begin), nullptr, false);
      fuzz::require(line.is_object() && !ended_);
      fuzz::require(line.contains("error") ||
                    line.contains(api_ == Api::kOllamaChat ? "message" : "response"));
      ended_ = line.contains("error") || line["done"].get<bool>();
      begin = end + 1;
    }
  }

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
  const Times times;
  context.usage = &usage;
  context.times = &times;
  const size_t count = context.choices;
  const auto writer = make_writer(api, std::move(context));
  EventChecker checker(api);
  writer->begin();
  std::vector<std::unique_ptr<Choice>> choices;
  for (size_t k = 0; k < count; ++k)
    choices.push_back(std::make_unique<Choice>(k, prepared, model(), *writer, usage));
  for (const int32_t token : tokens_of(output)) {
    for (const auto& choice : choices) choice->on_token({.id = token, .logprob = -1.f});
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
  const int api = (data[0] & 32) != 0 ? 4 + data[0] % 2 : data[0] % 4;
  dsv4::write_stream(static_cast<dsv4::Api>(api), data[0], data[1],
                     dsv4::fuzz::text(data + 2, size - 2));
  return 0;
}
