#include "dsv4/chat/json_value.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMaxQuote = 60;  // bytes of the document in an error line

std::string quotable(std::string_view text) {
  std::string out(text.substr(text.size() > kMaxQuote ? text.size() - kMaxQuote : 0));
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return out;
}

// Where keys are equal, the last value stands at the place of the first.
void keep_last(std::vector<JsonValue::Member>& members) {
  std::unordered_map<std::string_view, size_t> first;
  std::vector<size_t> target(members.size());
  for (size_t i = 0; i < members.size(); ++i)
    target[i] = first.try_emplace(members[i].first, i).first->second;
  if (first.size() == members.size()) return;
  std::vector<JsonValue::Member> kept;
  std::vector<size_t> place(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (target[i] == i) {
      place[i] = kept.size();
      kept.push_back(std::move(members[i]));
    } else {
      kept[place[target[i]]].second = std::move(members[i].second);
    }
  }
  members = std::move(kept);
}

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(JsonValue& root) : root_(root) {}
  const std::string& error() const { return error_; }

  bool null() override { return put({}) != nullptr; }
  bool boolean(bool value) override { return put(JsonValue::of_bool(value)) != nullptr; }
  // A negative integer; the parser reads -0 as one, which no integer can hold.
  bool number_integer(number_integer_t value) override {
    return value == 0 ? real(-0.0) : integer(std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override { return integer(std::to_string(value)); }
  bool number_float(number_float_t value, const string_t& digits) override {
    const bool whole = digits.find_first_of(".eE") == digits.npos;
    return whole ? integer(digits) : real(value);
  }
  bool string(string_t& value) override {
    if (value.size() > kMaxJsonString)
      return fail_with(fmt::format("a string of more than {} bytes", kMaxJsonString));
    return put(JsonValue::of_string(std::move(value))) != nullptr;
  }
  bool binary(binary_t&) override { return fail_with("binary data"); }
  bool start_object(size_t) override { return open(JsonValue::object()); }
  bool key(string_t& value) override {
    open_.back()->members.emplace_back(std::move(value), JsonValue());
    return true;
  }
  bool end_object() override {
    keep_last(open_.back()->members);
    open_.pop_back();
    return true;
  }
  bool start_array(size_t) override { return open(JsonValue::array()); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception&) override {
    return fail_with(
        fmt::format("not valid JSON at byte {}, near '{}'", position, quotable(token)));
  }

 private:
  bool integer(std::string digits) {
    JsonValue value;
    value.kind = Kind::kInteger;
    value.text = std::move(digits);
    return put(std::move(value)) != nullptr;
  }
  bool real(double number) {
    JsonValue value;
    value.kind = Kind::kDouble;
    value.number = number;
    return put(std::move(value)) != nullptr;
  }
  // The place of the value in the tree, which stays valid until the enclosing value gets another;
  // null where the text has too many.
  JsonValue* put(JsonValue value) {
    if (++count_ > kMaxJsonValues) {
      fail_with(fmt::format("more than {} values", kMaxJsonValues));
      return nullptr;
    }
    if (open_.empty()) return &(root_ = std::move(value));
    JsonValue& parent = *open_.back();
    if (parent.is_array()) return &parent.items.emplace_back(std::move(value));
    return &(parent.members.back().second = std::move(value));
  }
  bool open(JsonValue value) {
    if (open_.size() == kMaxJsonDepth)
      return fail_with(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    open_.push_back(put(std::move(value)));
    return open_.back() != nullptr;
  }
  bool fail_with(std::string error) {
    error_ = std::move(error);
    return false;
  }

  JsonValue& root_;
  std::vector<JsonValue*> open_;
  int64_t count_ = 0;
  std::string error_;
};

// The error, or nothing.
std::string parse_into(std::string_view text, JsonValue& value) {
  // The parser takes a NUL for the end of the text and would not see what follows it.
  if (const size_t nul = text.find('\0'); nul != text.npos)
    return fmt::format("not valid JSON: NUL byte at byte {}", nul);
  Builder builder(value);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.error();
}

// Python's repr of a finite double: the shortest digits that read back as the same value, with an
// exponent below 1e-4 and from 1e16 on.
void append_double(std::string& out, double value) {
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits_of_exponent = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, text.data() + text.size(), exponent);
  const size_t sign = text[0] == '-' ? 1 : 0;
  std::string digits(text.substr(sign, 1));
  if (e > sign + 2) digits += text.substr(sign + 2, e - sign - 2);
  if (sign == 1) out += '-';
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out.append(".").append(digits, 1);
    out += fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  } else if (count <= exponent + 1) {
    out.append(digits).append(static_cast<size_t>(exponent + 1 - count), '0').append(".0");
  } else {
    const auto whole = static_cast<size_t>(exponent + 1);
    out.append(digits, 0, whole).append(".").append(digits, whole);
  }
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

}  // namespace

JsonValue JsonValue::of_kind(Kind kind) {
  JsonValue value;
  value.kind = kind;
  return value;
}

JsonValue JsonValue::of_string(std::string text) {
  JsonValue value = of_kind(Kind::kString);
  value.text = std::move(text);
  return value;
}

JsonValue JsonValue::of_bool(bool boolean) {
  JsonValue value = of_kind(Kind::kBool);
  value.boolean = boolean;
  return value;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.first == key) return member.second.is_null() ? nullptr : &member.second;
  }
  return nullptr;
}

const char* name(JsonValue::Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInteger:
      return "an integer";
    case Kind::kDouble:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "a list";
    case Kind::kObject:
      return "an object";
  }
  return "?";
}

JsonValue parse_json(std::string_view text, std::string_view what) {
  JsonValue value;
  if (const std::string error = parse_into(text, value); !error.empty())
    fail(ErrorCode::kBadInput, "{}: {}", what, error);
  return value;
}

std::optional<JsonValue> try_parse_json(std::string_view text) {
  JsonValue value;
  if (!parse_into(text, value).empty()) return std::nullopt;
  return value;
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<int>(c));
        } else {
          out += c;
        }
    }
  }
}

void append_json(std::string& out, const JsonValue& value) {
  switch (value.kind) {
    case Kind::kNull:
      out += "null";
      break;
    case Kind::kBool:
      out += value.boolean ? "true" : "false";
      break;
    case Kind::kInteger:
      out += value.text;
      break;
    case Kind::kDouble:
      append_double(out, value.number);
      break;
    case Kind::kString:
      append_quoted(out, value.text);
      break;
    case Kind::kArray:
      out += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ", ";
        append_json(out, value.items[i]);
      }
      out += ']';
      break;
    case Kind::kObject:
      out += '{';
      for (size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ", ";
        append_quoted(out, value.members[i].first);
        out += ": ";
        append_json(out, value.members[i].second);
      }
      out += '}';
      break;
  }
}

std::string to_json(const JsonValue& value) {
  std::string out;
  append_json(out, value);
  return out;
}

}  // namespace dsv4
