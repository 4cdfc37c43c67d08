#include "dsv4/chat/call_arguments.h"

#include "dsv4/chat/json_value.h"

namespace dsv4 {

std::string_view trim_json(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

void CallArguments::begin_call(const std::unordered_set<std::string>* declared,
                               const ParameterTypes* types) {
  declared_ = declared;
  types_ = types;
  value_kind_ = Value::kNone;
  key_.clear();
  value_.clear();
  body_.clear();
  whole_pending_ = repaired_ = false;
  parameters_ = sent_ = 0;
}

void CallArguments::begin_value(std::string key, bool is_string) {
  if (whole_pending_) put_whole();
  const bool may_be_whole = parameters_ == 0 && declared_ != nullptr &&
                            (key == "arguments" || key == "input") && !declared_->contains(key);
  key_ = std::move(key);
  is_string_ = is_string;
  value_.clear();
  const bool streams = is_string && !may_coerce_string(types_of(key_));
  value_kind_ = may_be_whole ? Value::kWhole : streams ? Value::kStreamed : Value::kHeld;
  if (value_kind_ == Value::kStreamed) {
    put_key(key_);
    put("\"");
  }
  ++parameters_;
}

void CallArguments::value_text(std::string_view text) {
  if (value_kind_ == Value::kStreamed) {
    append_json_escaped(out_, text);
  } else {
    value_ += text;
  }
}

void CallArguments::end_value() {
  switch (value_kind_) {
    case Value::kStreamed:
      put("\"");
      break;
    case Value::kHeld:
      put_value(key_, is_string_, value_);
      value_.clear();
      break;
    case Value::kWhole:
      whole_pending_ = true;
      break;
    case Value::kNone:
      break;
  }
  value_kind_ = Value::kNone;
}

void CallArguments::body_text(std::string_view text) {
  if (parameters_ == 0) body_ += text;
}

bool CallArguments::end_call() {
  if (whole_pending_) {
    if (const auto object = unwrapped()) {
      put(*object);
      flush();
      return true;
    }
    put_whole();
  }
  if (parameters_ > 0) {
    put("}");
  } else {
    const std::string_view body = trim_json(body_);
    const auto object = try_parse_json(body);
    const bool usable = object && object->is_object();
    repaired_ = repaired_ || !body.empty();
    put(usable ? body : "{}");
  }
  flush();
  return repaired_;
}

void CallArguments::flush() {
  if (out_.empty()) return;
  sent_ += out_.size();
  sink_.on_arguments(out_);
  out_.clear();
}

// The first key opens the object.
void CallArguments::put_key(const std::string& key) {
  put(sent_ + out_.size() == 0 ? "{\"" : ", \"");
  append_json_escaped(out_, key);
  put("\": ");
}

void CallArguments::put_value(const std::string& key, bool is_string, const std::string& text) {
  put_key(key);
  if (const auto value = coerced(text, is_string, types_of(key))) {
    repaired_ = true;
    put(*value);
    return;
  }
  const std::string_view json = trim_json(text);
  if (!is_string && try_parse_json(json)) {
    put(json);
    return;
  }
  repaired_ = repaired_ || !is_string;
  put("\"");
  append_json_escaped(out_, text);
  put("\"");
}

JsonTypes CallArguments::types_of(const std::string& key) const {
  if (types_ == nullptr) return JsonTypes::kNone;
  const auto found = types_->find(key);
  return found == types_->end() ? JsonTypes::kNone : found->second;
}

void CallArguments::put_whole() {
  whole_pending_ = false;
  put_value(key_, is_string_, value_);
  value_.clear();
}

// The held object, if the tool has all of its keys.
std::optional<std::string> CallArguments::unwrapped() const {
  const std::string_view json = trim_json(value_);
  const auto object = try_parse_json(json);
  if (!object || !object->is_object()) return std::nullopt;
  for (const auto& [key, value] : object->members) {
    if (!declared_->contains(key)) return std::nullopt;
  }
  return std::string(json);
}

}  // namespace dsv4
