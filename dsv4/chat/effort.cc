#include "dsv4/chat/effort.h"

#include <charconv>

#include "dsv4/chat/fixed_texts.h"

namespace dsv4 {

const char* name(EffortProfile profile) {
  return profile == EffortProfile::kOfficial ? "official" : "preview";
}

std::optional<Effort> effort_of(std::string_view word) {
  constexpr std::pair<std::string_view, Effort> kWords[] = {
      {"none", Effort::kNone},     {"minimal", Effort::kMinimal}, {"low", Effort::kLow},
      {"medium", Effort::kMedium}, {"high", Effort::kHigh},       {"xhigh", Effort::kXHigh},
      {"max", Effort::kMax},       {"ultra", Effort::kUltra},
  };
  for (const auto& [known, effort] : kWords) {
    if (known == word) return effort;
  }
  return std::nullopt;
}

std::string_view effort_text(EffortProfile profile, Effort effort) {
  const bool most = effort == Effort::kMax || effort == Effort::kUltra;
  if (profile == EffortProfile::kPreview) return most ? kHighEffortText : "";
  if (effort == Effort::kMinimal || effort == Effort::kLow) return "";
  return most ? kMaxEffortText : kHighEffortText;
}

namespace {

// What only configs of the official release have: keys of the drafter, or ratios for it.
bool is_official_config(const JsonValue& config) {
  int64_t layers = -1;
  for (const auto& [key, value] : config.members) {
    if (key.starts_with("dspark_")) return true;
    if (key == "num_hidden_layers" && value.is(JsonValue::Kind::kInteger))
      std::from_chars(value.text.data(), value.text.data() + value.text.size(), layers);
  }
  const JsonValue* ratios = config.find("compress_ratios");
  return layers >= 0 && ratios != nullptr &&
         static_cast<int64_t>(ratios->items.size()) > layers + 1;
}

}  // namespace

EffortProfile detect_effort_profile(const std::optional<std::string>& encoder,
                                    const std::optional<JsonValue>& config) {
  if (encoder) {
    if (encoder->find("REASONING_EFFORT_PROMPTS") != encoder->npos) return EffortProfile::kOfficial;
    if (encoder->find("REASONING_EFFORT_MAX") != encoder->npos) return EffortProfile::kPreview;
  }
  const bool official = config && is_official_config(*config);
  return official ? EffortProfile::kOfficial : EffortProfile::kPreview;
}

int64_t default_max_tokens(bool thinking, Effort effort) {
  if (!thinking) return 8192;
  return effort == Effort::kMax || effort == Effort::kUltra ? 131072 : 65536;
}

double default_top_p(bool thinking, bool has_tools) {
  return thinking && has_tools ? 0.95 : 1.0;
}

}  // namespace dsv4
