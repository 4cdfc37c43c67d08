#include "dsv4/server/known_fields.h"

#include <algorithm>
#include <span>

#include "dsv4/chat/request_error.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxNamed = 16, kMaxNameBytes = 64;

// The fields of one object, by words. `place`: "" is the body, "tools[].function" an object of
// each item of a list. `ignored`: fields that the API has and that change nothing here.
struct KnownFields {
  std::string_view place, known, ignored;
};

constexpr KnownFields kChat[] = {
    {"",
     "model messages max_tokens max_completion_tokens temperature top_p top_k min_p "
     "presence_penalty frequency_penalty repetition_penalty seed n stop stop_token_ids ignore_eos "
     "min_tokens include_stop_str_in_output logit_bias stream stream_options logprobs "
     "top_logprobs tools tool_choice parallel_tool_calls max_tool_calls functions function_call "
     "thinking reasoning_effort drop_thinking chat_template_kwargs continue_final_message "
     "response_format guided_json guided_regex guided_choice structured_outputs cache_salt user "
     "safety_identifier prompt_cache_key priority deadline_ms",
     "metadata store service_tier verbosity prediction web_search_options prompt_cache_retention"},
    {"stream_options", "include_usage continuous_usage_stats", "include_obfuscation"},
    {"thinking", "type budget_tokens", ""},
    {"chat_template_kwargs", "thinking enable_thinking reasoning_effort drop_thinking", ""},
    {"response_format", "type json_schema pattern regex", ""},
    {"response_format.json_schema", "schema strict", "name description"},
    {"structured_outputs", "json json_object regex choice grammar structural_tag", ""},
    {"messages[]",
     "role content reasoning_content reasoning tool_calls tool_call_id prefix function_call",
     "name refusal annotations"},
    {"messages[].content[]", "type text", "cache_control"},
    {"messages[].tool_calls[]", "id type function index", ""},
    {"messages[].tool_calls[].function", "name arguments", ""},
    {"tools[]", "type function", "cache_control"},
    {"tools[].function", "name description parameters strict", ""},
    {"tool_choice", "type function allowed_tools", ""},
};

constexpr KnownFields kCompletions[] = {
    {"",
     "model prompt suffix echo parse_special max_tokens temperature top_p top_k min_p "
     "presence_penalty frequency_penalty repetition_penalty seed n best_of stop stop_token_ids "
     "ignore_eos min_tokens include_stop_str_in_output logit_bias stream stream_options logprobs "
     "response_format guided_json guided_regex guided_choice structured_outputs cache_salt user "
     "safety_identifier prompt_cache_key priority deadline_ms",
     "metadata store service_tier prompt_cache_retention"},
    {"stream_options", "include_usage continuous_usage_stats", "include_obfuscation"},
    {"response_format", "type json_schema pattern regex", ""},
    {"response_format.json_schema", "schema strict", "name description"},
    {"structured_outputs", "json json_object regex choice grammar structural_tag", ""},
};

constexpr KnownFields kMessages[] = {
    {"",
     "model messages max_tokens system stop_sequences temperature top_p top_k thinking "
     "output_config output_format tools tool_choice stream",
     "metadata service_tier container context_management betas cache_control inference_geo"},
    {"system[]", "type text", "cache_control citations"},
    {"messages[]", "role content", ""},
    {"messages[].content[]",
     "type text thinking signature data id name input tool_use_id content is_error",
     "cache_control citations caller"},
    {"messages[].content[].content[]", "type text", "cache_control citations"},
    {"thinking", "type budget_tokens", "display"},
    {"output_config", "effort format", "task_budget"},
    {"output_config.format", "type schema", "name"},
    {"output_format", "type schema", "name"},
    {"tools[]", "type name description input_schema strict",
     "cache_control defer_loading eager_input_streaming input_examples allowed_callers"},
    {"tool_choice", "type name disable_parallel_tool_use", ""},
};

// Without the items of `input` and `tools`, whose keys depend on their types: responses_api.cc.
constexpr KnownFields kResponses[] = {
    {"",
     "model input instructions max_output_tokens reasoning text tools tool_choice include stream "
     "parallel_tool_calls max_tool_calls top_logprobs temperature top_p store truncation metadata "
     "previous_response_id conversation background prompt user safety_identifier "
     "prompt_cache_key seed",
     "service_tier prompt_cache_retention stream_options context_management client_metadata"},
    {"reasoning", "effort", "summary generate_summary"},
    {"text", "format", "verbosity"},
    {"text.format", "type schema strict pattern", "name description"},
    {"tool_choice", "type name mode tools", ""},
};

// Wherever they stand in a body, and whatever the API: they would change what the answer may be.
constexpr std::string_view kRefused =
    "audio modalities guided_grammar mcp_servers use_beam_search logits_processors bad_words "
    "allowed_token_ids chat_template prompt_embeds truncate_prompt_tokens";

std::span<const KnownFields> fields_of(Api api) {
  switch (api) {
    case Api::kChat:
      return kChat;
    case Api::kCompletions:
      return kCompletions;
    case Api::kMessages:
      return kMessages;
    case Api::kResponses:
      return kResponses;
  }
  return {};
}

bool has_word(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != word.npos) return false;
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' '))
      return true;
  }
  return false;
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
  for (const KnownFields& fields : fields_of(api)) {
    visit(body, fields.place, [&](const JsonValue& object) {
      for (const auto& [key, value] : object.members) {
        const bool refused = has_word(kRefused, key);
        // An empty object still turns something on, such as `audio`.
        if (has_word(fields.known, key) || (is_idle(value) && !(refused && value.is_object())))
          continue;
        const std::string name =
            one_line(fields.place.empty() ? key : fmt::format("{}.{}", fields.place, key));
        if (key == "modalities" && is_text_only(value)) continue;
        if (refused) {
          throw RequestError("unsupported_value", name, fmt::format("{}: is not supported", name));
        }
        if (strict && !has_word(fields.ignored, key)) {
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
