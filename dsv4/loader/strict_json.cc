#include "dsv4/loader/strict_json.h"

#include "dsv4/base/error.h"

namespace dsv4 {

void StrictJson::parse(std::string_view text) {
  // The parser treats a NUL as the end of the text and would ignore what follows it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    fail(ErrorCode::kBadInput, "{}: NUL byte at byte {} of the JSON text", what_, nul);
  nlohmann::json::sax_parse(text.begin(), text.end(), this);
}

bool StrictJson::null() {
  unexpected("null");
}
bool StrictJson::boolean(bool) {
  unexpected("a boolean");
}
bool StrictJson::number_integer(number_integer_t) {
  unexpected("a negative number");
}
bool StrictJson::number_unsigned(number_unsigned_t) {
  unexpected("a number");
}
bool StrictJson::number_float(number_float_t, const string_t&) {
  unexpected("a number that is not a 64-bit integer");
}
bool StrictJson::string(string_t&) {
  unexpected("a string");
}
bool StrictJson::binary(binary_t&) {
  unexpected("binary data");
}
bool StrictJson::start_object(size_t) {
  unexpected("an object");
}
bool StrictJson::key(string_t&) {
  unexpected("a key");
}
bool StrictJson::end_object() {
  unexpected("the end of an object");
}
bool StrictJson::start_array(size_t) {
  unexpected("an array");
}
bool StrictJson::end_array() {
  unexpected("the end of an array");
}

bool StrictJson::parse_error(size_t position, const std::string& token,
                             const nlohmann::json::exception&) {
  fail(ErrorCode::kBadInput, "{}: not valid JSON at byte {}, near '{}'", what_, position,
       quotable(token));
}

void StrictJson::unexpected(std::string_view event) const {
  fail(ErrorCode::kBadInput, "{}: {}: {} is not allowed here", what_, place(), event);
}

}  // namespace dsv4
