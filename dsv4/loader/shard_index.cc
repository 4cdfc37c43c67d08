#include "dsv4/loader/shard_index.h"

#include "dsv4/base/error.h"
#include "dsv4/loader/strict_json.h"

namespace dsv4 {
namespace {

// Reads weight_map and skips the values of every other key.
class IndexReader final : public StrictJson {
 public:
  using StrictJson::StrictJson;

  std::map<std::string, std::string> weight_map;
  bool have_map = false;

  bool start_object(size_t) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override { return leave(); }
  bool key(string_t& text) override;
  bool string(string_t& text) override;
  bool null() override { return skip("null"); }
  bool boolean(bool) override { return skip("a boolean"); }
  bool number_integer(number_integer_t) override { return skip("a number"); }
  bool number_unsigned(number_unsigned_t) override { return skip("a number"); }
  bool number_float(number_float_t, const string_t&) override { return skip("a number"); }

 private:
  static constexpr int kMaxDepth = 32;

  std::string place() const override {
    return in_map() ? "weight_map: " + quotable(name_) : quotable(top_);
  }
  bool at_map() const { return depth_ == 1 && top_ == "weight_map"; }  // its value comes next
  bool in_map() const { return depth_ >= 2 && top_ == "weight_map"; }
  bool skip(std::string_view event) const;
  bool enter();
  bool leave() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  std::string top_, name_;  // top-level key; tensor name inside weight_map
};

bool IndexReader::skip(std::string_view event) const {
  if (depth_ == 0 || at_map() || in_map()) unexpected(event);
  return true;
}

bool IndexReader::enter() {
  if (++depth_ > kMaxDepth) unexpected(fmt::format("nesting beyond {} levels", kMaxDepth));
  return true;
}

bool IndexReader::start_object(size_t) {
  if (in_map()) unexpected("an object");
  return enter();
}

bool IndexReader::end_object() {
  return leave();
}

bool IndexReader::start_array(size_t) {
  if (depth_ == 0 || at_map() || in_map()) unexpected("an array");
  return enter();
}

bool IndexReader::key(string_t& text) {
  if (depth_ == 1) {
    top_ = text;
    if (!at_map()) return true;
    if (have_map) unexpected("a second weight_map");
    have_map = true;
    name_.clear();
  } else if (in_map()) {
    name_ = text;
  }
  return true;
}

bool IndexReader::string(string_t& text) {
  if (!in_map()) return skip("a string");
  if (text.empty() || text[0] == '.' || text.find('/') != std::string::npos)
    fail(ErrorCode::kBadInput, "{}: {} is in '{}', which is not a file name", what(),
         quotable(name_), quotable(text));
  if (!weight_map.emplace(name_, std::move(text)).second) unexpected("a second value");
  return true;
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& what) {
  IndexReader reader(what);
  reader.parse(text);
  if (!reader.have_map) fail(ErrorCode::kBadInput, "{}: no weight_map", what);
  return std::move(reader.weight_map);
}

}  // namespace dsv4
