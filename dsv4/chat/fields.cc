#include "dsv4/chat/fields.h"

#include "dsv4/chat/request_error.h"

namespace dsv4 {

void Field::want(JsonValue::Kind kind) const {
  if (value_ == nullptr) refuse(path_, "is missing; want {}", name(kind));
  if (value_->kind != kind) refuse(path_, "want {}, got {}", name(kind), name(value_->kind));
}

Field Field::at(std::string_view key) const {
  return {object().find(key), path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
}

Field Field::at(size_t index) const {
  return {&value_->items[index], fmt::format("{}[{}]", path_, index)};
}

const std::string& Field::string() const {
  want(JsonValue::Kind::kString);
  return value_->text;
}

const JsonValue& Field::object() const {
  want(JsonValue::Kind::kObject);
  return *value_;
}

size_t Field::list() const {
  want(JsonValue::Kind::kArray);
  return value_->items.size();
}

bool Field::boolean(bool if_absent) const {
  if (!present()) return if_absent;
  want(JsonValue::Kind::kBool);
  return value_->boolean;
}

std::string Field::string_or(std::string_view if_absent) const {
  return present() ? string() : std::string(if_absent);
}

std::string Field::text() const {
  return join_blocks(texts());
}

std::vector<std::string> Field::texts() const {
  if (!present()) return {};
  if (value_->is_string()) return {value_->text};
  if (!value_->is_array())
    refuse(path_, "want a string or a list of text parts, got {}", name(value_->kind));
  std::vector<std::string> texts;
  for (size_t i = 0; i < value_->items.size(); ++i) {
    const Field part = at(i);
    const std::string& type = part.at("type").string();
    if (type != "text") {
      throw RequestError("unsupported_content", part.path(),
                         fmt::format("{}: only text parts are supported", part.path()));
    }
    texts.push_back(part.at("text").string());
  }
  return texts;
}

std::string join_blocks(const std::vector<std::string>& blocks) {
  std::string out;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0) out += "\n\n";
    out += blocks[i];
  }
  return out;
}

}  // namespace dsv4
