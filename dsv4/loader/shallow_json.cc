#include "dsv4/loader/shallow_json.h"

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

// Reads a text without building a tree. The library's parser could call back for each value, but
// then searches the whole parent for discarded values at the end of each object.
class Limits : public nlohmann::json_sax<Json> {
 public:
  Limits(const std::string& what, int64_t max_keys) : what_(what), max_keys_(max_keys) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(std::string&) override {
    if (++keys_ > max_keys_) fail(ErrorCode::kBadInput, "{}: more than {} keys", what_, max_keys_);
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  bool open() {
    if (++depth_ > kMaxJsonDepth)
      fail(ErrorCode::kBadInput, "{}: nested deeper than {} levels", what_, kMaxJsonDepth);
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& what_;
  const int64_t max_keys_;
  int64_t keys_ = 0;
  int depth_ = 0;
};

}  // namespace

Json parse_shallow_json(std::string_view text, const std::string& what, int64_t max_keys) {
  if (text.find('\0') != text.npos) fail(ErrorCode::kBadInput, "{}: holds a NUL byte", what);
  Limits limits(what, max_keys);
  Json root(Json::value_t::discarded);
  if (Json::sax_parse(text, &limits)) root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) fail(ErrorCode::kBadInput, "{}: not valid JSON", what);
  return root;
}

}  // namespace dsv4
