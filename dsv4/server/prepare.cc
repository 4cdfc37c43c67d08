#include "dsv4/server/prepare.h"

#include <algorithm>

#include "dsv4/chat/encoder_level.h"
#include "dsv4/chat/ollama_api.h"
#include "dsv4/chat/render.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/chat/translated.h"
#include "dsv4/server/answer_constraint.h"
#include "dsv4/server/known_fields.h"
#include "dsv4/server/numbers.h"
#include "dsv4/server/ollama_info.h"
#include "dsv4/server/seal.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxChoices = 128;

// The chat form of a body, empty where the body has it already: chat_form().
Translated translated(Api api, const JsonValue& body, const std::string& seal_key) {
  if (api == Api::kMessages) return chat_of_messages(body);
  if (api == Api::kResponses) {
    return chat_of_responses(body,
                             [&](const std::string& text) { return unsealed(seal_key, text); });
  }
  if (api == Api::kOllamaChat) return chat_of_ollama_chat(body);
  if (api == Api::kOllamaGenerate) return chat_of_ollama_generate(body);
  return {};
}

const JsonValue& chat_form(Api api, const JsonValue& body, const Translated& request) {
  return api == Api::kChat || api == Api::kCompletions ? body : request.chat;
}

void read_declared(const std::vector<ToolDefinition>& tools, bool coerce, ParserOptions& parser) {
  for (const ToolDefinition& tool : tools) {
    if (coerce) parser.types[tool.name] = parameter_types(tool.parameters);
    auto& keys = parser.declared[tool.name];
    const JsonValue* properties = tool.parameters.find("properties");
    if (properties == nullptr) continue;
    for (const auto& [key, value] : properties->members) keys.insert(key);
  }
}

std::string prompt_field(Api api) {
  return api == Api::kCompletions || api == Api::kOllamaGenerate ? "prompt" : "messages";
}

// A prompt of ids that the client gives.
std::vector<int32_t> read_ids(const Field& list, int32_t vocab_size) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.list(); ++i)
    ids.push_back(static_cast<int32_t>(*read_integer(list.at(i), 0, vocab_size - 1)));
  if (ids.empty()) refuse(list.path(), "is empty");
  return ids;
}

std::vector<int32_t> encode_prompt(const Prompt& prompt, const ServedModel& model, Api api) {
  size_t bytes = 0;
  for (const PromptPiece& piece : prompt.pieces())
    if (!piece.marker && piece.ids.empty()) bytes += piece.text.size();
  require_room(bytes, model, prompt_field(api));
  return encode(prompt, model.markers, model.text);
}

std::vector<int32_t> encode_text(const JsonValue& body, const JsonValue& text,
                                 const ServedModel& model) {
  JsonValue one = JsonValue::object();
  for (const char* key : {"suffix", "parse_special"}) {
    if (const JsonValue* value = body.find(key)) one.add(key, *value);
  }
  one.add("prompt", text);
  return encode_prompt(render_completion(one), model, Api::kCompletions);
}

void check_choices(size_t prompts, int64_t n) {
  if (prompts * static_cast<size_t>(n) > kMaxChoices)
    refuse("prompt", "prompts times n must be at most {}", kMaxChoices);
}

void read_completion_prompts(const JsonValue& body, const ServedModel& model, Prepared& out) {
  const Field prompt = Field(&body, "").at("prompt");
  const auto is_integer = [](const JsonValue& value) {
    return value.is(JsonValue::Kind::kInteger) || value.is(JsonValue::Kind::kDouble);
  };
  if (!prompt.present() || prompt.json().is_string()) {
    prompt.string();
    out.prompts.push_back(encode_text(body, prompt.json(), model));
  } else if (prompt.list() > 0 && is_integer(prompt.json().items[0])) {
    out.prompts.push_back(read_ids(prompt, model.text_ids()));
  } else {
    check_choices(prompt.list(), out.settings.n);  // before any of them costs time
    for (size_t i = 0; i < prompt.list(); ++i) {
      const Field one = prompt.at(i);
      if (one.present() && one.json().is_array()) {
        out.prompts.push_back(read_ids(one, model.text_ids()));
      } else {
        one.string();
        out.prompts.push_back(encode_text(body, one.json(), model));
      }
    }
  }
  if (out.prompts.empty()) refuse("prompt", "is empty");
  if (out.settings.echo) {
    for (const auto& ids : out.prompts)
      out.answer.prompt_texts.push_back(model.tokenizer->decode(ids, /*skip_special=*/true));
  }
  out.constraint = format_constraint(model, read_response_format(Field(&body, "")));
  // The output is text as it comes, newlines at its start included.
  out.parser.stage = OutputStage::kContent;
  out.parser.continues = true;
}

// As many tokens as the context has room for, but not more than `most`.
void use_room(const ServedModel& model, int64_t most, Prepared& out) {
  const int64_t room = model.limits.context - static_cast<int64_t>(out.prompts[0].size());
  out.fills_context = room < most;
  out.max_tokens = std::min(room, most);
}

void read_chat(const JsonValue& body, const ServedModel& model, Prepared& out) {
  const Conversation conversation = read_chat_request(body, model.chat);
  const Prompt prompt = render(conversation, &model.replay, out.settings.salt);
  out.prompts.push_back(encode_prompt(prompt, model, Api::kChat));
  out.is_chat = true;
  out.parser.tools = !conversation.tools.empty();
  out.continues = out.parser.continues = prompt.continues;
  out.parser.stage = prompt.stage;
  const Field fields(&body, "");
  out.parser.max_calls = read_integer(fields.at("max_tool_calls"), 1, int64_t{1} << 30).value_or(0);
  if (!fields.at("parallel_tool_calls").boolean(true)) out.parser.max_calls = 1;
  read_declared(conversation.tools, model.tool_coerce, out.parser);
  out.constraint = answer_constraint(model, conversation, prompt.stage, out.parser.max_calls == 1);
  if (!out.settings.has_top_p && conversation.thinking && out.parser.tools) {
    out.settings.sampling.top_p =
        static_cast<float>(default_top_p(conversation.thinking, out.parser.tools));
  }
  if (!out.settings.max_tokens)
    use_room(model, default_max_tokens(conversation.thinking, conversation.effort), out);
}

void check_context(const ServedModel& model, Prepared& out) {
  if (out.settings.max_tokens) out.max_tokens = *out.settings.max_tokens;
  for (const auto& prompt : out.prompts) {
    const auto length = static_cast<int64_t>(prompt.size());
    const int64_t context = model.limits.context;
    if (length < context && out.max_tokens >= 1 && out.max_tokens <= context - length) continue;
    throw RequestError(
        "context_length_exceeded", prompt_field(out.api),
        fmt::format("this model's context is {} tokens; the prompt has {} and the answer may have "
                    "{}",
                    context, length, std::max<int64_t>(out.max_tokens, 1)));
  }
}

void prepare_body(const JsonValue& body, const Translated& request, const ServedModel& model,
                  const std::string& owner, Prepared& out) {
  const bool completions = out.api == Api::kCompletions || request.completion;
  const JsonValue& chat = chat_form(out.api, body, request);
  out.settings = read_settings(Field(&chat, ""), completions ? Api::kCompletions : Api::kChat,
                               model.sampling, model.text_ids());
  if (!out.settings.prediction.empty()) {
    require_room(out.settings.prediction.size(), model, "prediction");
    model.text.encode(out.settings.prediction, out.prediction);
  }
  if (!owner.empty()) out.settings.salt = owner + '\n' + out.settings.salt;
  out.parser.stops = out.settings.stops;
  if (completions) {
    read_completion_prompts(chat, model, out);
    // Ollama's completions have no limit of their own.
    if (request.completion && chat.find("max_tokens") == nullptr) {
      out.settings.max_tokens.reset();
      use_room(model, model.limits.context, out);
    }
  } else {
    read_chat(chat, model, out);
  }
  check_context(model, out);
}

}  // namespace

void require_room(size_t bytes, const ServedModel& model, const std::string& param) {
  const size_t least = model.least_tokens(bytes);
  if (least <= static_cast<size_t>(model.limits.context)) return;
  throw RequestError("context_length_exceeded", param,
                     fmt::format("this model's context is {} tokens; the prompt has {} or more",
                                 model.limits.context, least));
}

Prepared prepare(Api api, const std::string& text, const ServedModel& model,
                 const std::string& seal_key, const std::string& owner) {
  JsonValue body = parse_json(text, "the body");
  Field(&body, "").object();
  Prepared out{.api = api};
  out.answer.model = model_name(body, model, api);
  out.ignored = ignored_fields(body, api, model.strict_fields);
  if (const std::string reason = is_ollama(api) ? ollama_load_reason(body) : ""; !reason.empty()) {
    out.ready = ollama_loaded(out.answer.model, reason, api == Api::kOllamaChat);
    return out;
  }
  Translated request = translated(api, body, seal_key);
  try {
    prepare_body(body, request, model, owner, out);
  } catch (const RequestError& error) {
    throw client_error(error, request);
  }
  out.ignored.insert(out.ignored.end(), request.ignored.begin(), request.ignored.end());
  out.answer.reasoning_alias = model.reasoning_alias;
  out.answer.choices = out.prompts.size() * static_cast<size_t>(out.settings.n);
  out.answer.settings = out.settings;
  if (out.settings.return_ids) out.answer.prompt_ids = out.prompts;
  out.answer.seal_key = seal_key;
  if (api == Api::kResponses) {
    request.chat = {};
    out.answer.request = std::move(request);
    for (auto& [key, value] : body.members) {
      if (key == "input") value = {};  // which the answer does not repeat
    }
    out.answer.body = std::move(body);
  }
  return out;
}

std::vector<int32_t> prompt_ids(Api api, const JsonValue& body, const ServedModel& model,
                                const std::string& seal_key, Prompt* prompt) {
  const Translated request = translated(api, body, seal_key);
  try {
    Prompt rendered = render(read_chat_request(chat_form(api, body, request), model.chat));
    std::vector<int32_t> ids = encode_prompt(rendered, model, api);
    if (prompt != nullptr) *prompt = std::move(rendered);
    return ids;
  } catch (const RequestError& error) {
    throw client_error(error, request);
  }
}

std::string model_name(const JsonValue& body, const ServedModel& model, Api api) {
  const std::string name = Field(&body, "").at("model").string_or(model.names.front());
  const auto known = [&](std::string_view one) {
    return std::find(model.names.begin(), model.names.end(), one) != model.names.end();
  };
  constexpr std::string_view kLatest = ":latest";
  const bool tagged = is_ollama(api) && name.ends_with(kLatest) &&
                      known(std::string_view(name).substr(0, name.size() - kLatest.size()));
  if (known(name) || tagged || model.any_name) return name;
  throw RequestError(
      "model_not_found", "model",
      fmt::format("model: no model '{}' here; this server has '{}'", name, model.names.front()),
      404);
}

std::unique_ptr<AnswerWriter> make_writer(Api api, AnswerContext context) {
  switch (api) {
    case Api::kChat:
      return chat_writer(std::move(context));
    case Api::kCompletions:
      return completion_writer(std::move(context));
    case Api::kMessages:
      return messages_writer(std::move(context));
    case Api::kResponses:
      return responses_writer(std::move(context));
    case Api::kOllamaChat:
    case Api::kOllamaGenerate:
      return ollama_writer(std::move(context), api == Api::kOllamaChat);
  }
  return nullptr;
}

}  // namespace dsv4
