#include "dsv4/server/known_fields.h"

#include <algorithm>

#include "dsv4/chat/request_error.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxNamed = 16, kMaxNameBytes = 64;

constexpr unsigned bit(Api api) {
  return 1u << static_cast<unsigned>(api);
}
constexpr unsigned kChat = bit(Api::kChat), kCompletions = bit(Api::kCompletions),
                   kMessages = bit(Api::kMessages), kResponses = bit(Api::kResponses),
                   kOllamaChat = bit(Api::kOllamaChat), kOllamaGenerate = bit(Api::kOllamaGenerate),
                   kOllama = kOllamaChat | kOllamaGenerate;

// Fields of one object of these APIs, by words. `place`: "" is the body, "tools[].function" an
// object of each item of a list; it may have several entries. `ignored`: fields that the API has
// and that change nothing here.
struct KnownFields {
  unsigned apis;
  std::string_view place, known, ignored;
};

constexpr KnownFields kFields[] = {
    {kChat | kCompletions, "",
     "model max_tokens temperature top_p top_k min_p presence_penalty frequency_penalty "
     "repetition_penalty seed n stop stop_token_ids ignore_eos min_tokens "
     "include_stop_str_in_output logit_bias stream stream_options logprobs response_format "
     "guided_json guided_regex guided_choice guided_grammar structured_outputs cache_salt user "
     "safety_identifier prompt_cache_key priority deadline_ms speculate return_token_ids",
     "metadata store service_tier prompt_cache_retention"},
    {kChat, "",
     "messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls "
     "max_tool_calls functions function_call thinking reasoning_effort drop_thinking "
     "chat_template_kwargs continue_final_message "
     "prediction",
     "verbosity web_search_options"},
    {kChat, "prediction", "type content", ""},
    {kChat, "prediction.content[]", "type text", ""},
    {kCompletions, "", "prompt suffix echo parse_special best_of", ""},
    {kChat | kCompletions, "stream_options", "include_usage continuous_usage_stats",
     "include_obfuscation"},
    {kChat | kCompletions, "response_format", "type json_schema pattern regex", ""},
    {kChat | kCompletions, "response_format.json_schema", "schema strict", "name description"},
    {kChat | kCompletions, "structured_outputs",
     "json json_object regex choice grammar structural_tag", ""},
    {kChat, "thinking", "type budget_tokens", ""},
    {kChat, "chat_template_kwargs", "thinking enable_thinking reasoning_effort drop_thinking", ""},
    {kChat, "messages[]",
     "role content reasoning_content reasoning tool_calls tool_call_id prefix function_call",
     "name refusal annotations"},
    {kChat, "messages[].content[]", "type text", "cache_control"},
    {kChat, "messages[].tool_calls[]", "id type function index", ""},
    {kChat, "messages[].tool_calls[].function", "name arguments", ""},
    {kChat, "tools[]", "type function", "cache_control"},
    {kChat, "tools[].function", "name description parameters strict", ""},
    {kChat, "tool_choice", "type function allowed_tools", ""},

    {kMessages, "",
     "model messages max_tokens system stop_sequences temperature top_p top_k thinking "
     "output_config output_format tools tool_choice stream cache_salt priority deadline_ms "
     "speculate",
     "metadata service_tier container context_management betas cache_control inference_geo"},
    {kMessages, "thinking", "type budget_tokens", "display"},
    {kMessages, "system[]", "type text", "cache_control citations"},
    {kMessages, "messages[]", "role content", ""},
    {kMessages, "messages[].content[]",
     "type text thinking signature data id name input tool_use_id content is_error source title "
     "caller",
     "cache_control citations context"},
    {kMessages, "messages[].content[].source", "type data", "media_type"},
    {kMessages, "messages[].content[].content[]", "type text", "cache_control citations"},
    {kMessages, "output_config", "effort format", "task_budget"},
    {kMessages, "output_config.format", "type schema", "name"},
    {kMessages, "output_format", "type schema", "name"},
    {kMessages, "tools[]", "type name description input_schema strict",
     "cache_control defer_loading eager_input_streaming input_examples allowed_callers"},
    {kMessages, "tool_choice", "type name disable_parallel_tool_use", ""},

    // Without the items of `input` and `tools`, whose keys depend on their types: responses_api.cc.
    {kResponses, "",
     "model input instructions max_output_tokens reasoning text tools tool_choice include stream "
     "parallel_tool_calls max_tool_calls top_logprobs temperature top_p store truncation metadata "
     "previous_response_id conversation background prompt user safety_identifier "
     "prompt_cache_key seed cache_salt priority deadline_ms speculate",
     "service_tier prompt_cache_retention stream_options context_management client_metadata"},
    {kResponses, "reasoning", "effort", "summary generate_summary"},
    {kResponses, "text", "format", "verbosity"},
    {kResponses, "text.format", "type schema strict pattern", "name description"},
    {kResponses, "tool_choice", "type name mode tools", ""},

    {kOllama, "", "model format options stream think logprobs top_logprobs",
     "keep_alive truncate shift"},
    {kOllamaChat, "", "messages tools", ""},
    {kOllamaGenerate, "", "prompt suffix system raw images template context", ""},
    {kOllama, "options",
     "temperature top_p top_k min_p seed stop presence_penalty frequency_penalty repeat_penalty "
     "num_predict",
     "num_ctx num_keep num_batch num_gpu main_gpu num_thread use_mmap use_mlock low_vram numa "
     "repeat_last_n typical_p tfs_z mirostat mirostat_eta mirostat_tau penalize_newline"},
    {kOllamaChat, "messages[]", "role content images tool_calls tool_name name thinking",
     "tool_call_id"},
    {kOllamaChat, "messages[].tool_calls[]", "function", "id type"},
    {kOllamaChat, "messages[].tool_calls[].function", "name arguments", "index"},
    {kOllamaChat, "tools[]", "type function", ""},
    {kOllamaChat, "tools[].function", "name description parameters strict", ""},
};

// Wherever they stand in a body, and whatever the API: they would change what the answer may be.
constexpr std::string_view kRefused =
    "audio modalities mcp_servers use_beam_search logits_processors bad_words "
    "allowed_token_ids chat_template prompt_embeds truncate_prompt_tokens";

bool has_word(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != word.npos) return false;
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
}

// Whether an entry of this place has the key among its `words`.
bool has_field(unsigned api, std::string_view place, std::string_view KnownFields::*words,
               std::string_view key) {
  return std::any_of(std::begin(kFields), std::end(kFields), [&](const KnownFields& fields) {
    return (fields.apis & api) != 0 && fields.place == place && has_word(fields.*words, key);
  });
}

// The places of an API, each once, in the order of the table.
std::vector<std::string_view> places_of(unsigned api) {
  std::vector<std::string_view> places;
  for (const KnownFields& fields : kFields) {
    const bool is_new = std::find(places.begin(), places.end(), fields.place) == places.end();
    if ((fields.apis & api) != 0 && is_new) places.push_back(fields.place);
  }
  return places;
}

// Changes nothing.
bool is_idle(const JsonValue& value) {
  return value.is_null() || value == JsonValue::of_bool(false) ||
         value == JsonValue::of_string("") || (value.is_array() && value.items.empty()) ||
         (value.is_object() && value.members.empty());
}

// Text only, which is what there is.
bool is_text_only(const JsonValue& modalities) {
  return modalities.is_array() && modalities.items.size() == 1 &&
         modalities.items[0] == JsonValue::of_string("text");
}

// The objects at `place`, a path below `value`.
template <class Visit>
void visit(const JsonValue& value, std::string_view place, const Visit& on_object) {
  if (place.empty()) {
    if (value.is_object()) on_object(value);
    return;
  }
  const size_t dot = std::min(place.find('.'), place.size());
  std::string_view key = place.substr(0, dot);
  const std::string_view rest = place.substr(std::min(dot + 1, place.size()));
  const bool each = key.ends_with("[]");
  if (each) key.remove_suffix(2);
  const JsonValue* found = value.is_object() ? value.find(key) : nullptr;
  if (found == nullptr) return;
  if (!each) return visit(*found, rest, on_object);
  for (const JsonValue& item : found->items) visit(item, rest, on_object);
}

}  // namespace

std::vector<std::string> ignored_fields(const JsonValue& body, Api api, bool strict) {
  std::vector<std::string> ignored;
  for (const std::string_view place : places_of(bit(api))) {
    visit(body, place, [&](const JsonValue& object) {
      for (const auto& [key, value] : object.members) {
        const bool refused = has_word(kRefused, key);
        // An empty object still turns something on, such as `audio`.
        if (has_field(bit(api), place, &KnownFields::known, key) ||
            (is_idle(value) && !(refused && value.is_object())))
          continue;
        const std::string name = one_line(place.empty() ? key : fmt::format("{}.{}", place, key));
        if (key == "modalities" && is_text_only(value)) continue;
        if (refused) {
          throw RequestError("unsupported_value", name, fmt::format("{}: is not supported", name));
        }
        if (strict && !has_field(bit(api), place, &KnownFields::ignored, key)) {
          throw RequestError("unknown_field", name,
                             fmt::format("{}: is not a field of this API", name));
        }
        const std::string cut = name.substr(0, kMaxNameBytes);
        // A body with many such fields must not cost the square of their number.
        if (ignored.size() <= kMaxNamed &&
            std::find(ignored.begin(), ignored.end(), cut) == ignored.end())
          ignored.push_back(cut);
      }
    });
  }
  return ignored;
}

std::string warning_of(const std::vector<std::string>& ignored) {
  std::string warning;
  for (size_t i = 0; i < ignored.size() && i < kMaxNamed; ++i)
    warning += (i > 0 ? ", " : "") + ignored[i].substr(0, kMaxNameBytes);
  return ignored.size() > kMaxNamed ? warning + ", ..." : warning;
}

}  // namespace dsv4
