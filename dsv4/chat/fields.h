// Fields of a request body with their JSON types checked. Null is absent. Errors are RequestErrors
// that name the path.

#pragma once

#include <optional>
#include <string>

#include "dsv4/chat/json_value.h"

namespace dsv4 {

// A value of a body and the path that led to it.
class Field {
 public:
  // `value` may be null, which is an absent field; it must outlive the Field.
  Field(const JsonValue* value, std::string path) : value_(value), path_(std::move(path)) {
    if (value_ != nullptr && value_->is_null()) value_ = nullptr;
  }

  bool present() const { return value_ != nullptr; }
  const JsonValue& json() const { return *value_; }
  const std::string& path() const { return path_; }

  Field at(std::string_view key) const;  // of an object
  Field at(size_t index) const;          // of a list

  // The field must be present.
  const std::string& string() const;
  const JsonValue& object() const;
  size_t list() const;  // its length

  bool boolean(bool if_absent) const;
  std::string string_or(std::string_view if_absent) const;

  // A string, or a list of text parts, which are joined by a blank line; absent is empty.
  std::string text() const;
  // The texts of the same: one, or one for each part.
  std::vector<std::string> texts() const;

 private:
  void want(JsonValue::Kind kind) const;

  const JsonValue* value_;
  std::string path_;
};

// Joined by blank lines.
std::string join_blocks(const std::vector<std::string>& blocks);

}  // namespace dsv4
