// Untrusted JSON, read as a stream of events: no document tree is built, so memory is proportional
// to the values that are kept, whatever the text holds.
//
// A derived class overrides the events that its grammar allows; any other event is an error that
// names the location. Errors are kBadInput, one line, and quote at most kMaxQuote bytes of the
// text.

#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dsv4/base/quote.h"

namespace dsv4 {

class StrictJson : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StrictJson(std::string what) : what_(std::move(what)) {}

  void parse(std::string_view text);

  bool null() override;
  bool boolean(bool) override;
  bool number_integer(number_integer_t) override;  // negative numbers only
  bool number_unsigned(number_unsigned_t) override;
  bool number_float(number_float_t, const string_t&) override;  // also integers that exceed 64 bits
  bool string(string_t&) override;
  bool binary(binary_t&) override;
  bool start_object(size_t) override;
  bool key(string_t&) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception& error) override;

 protected:
  // The current location, for error messages: "layers.0.attn.attn_sink: shape".
  virtual std::string place() const = 0;
  const std::string& what() const { return what_; }
  [[noreturn]] void unexpected(std::string_view event) const;

 private:
  std::string what_;
};

}  // namespace dsv4
