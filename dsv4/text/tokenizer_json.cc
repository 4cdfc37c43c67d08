#include "dsv4/text/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/text/byte_alphabet.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPatterns = 16;  // V4 has three

std::string shown(std::string_view text) {
  return printable(text, kMaxQuote);
}

// A JSON value and the path that led to it, for errors.
class Node {
 public:
  Node(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kBadInput, "{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kUnsupported, "{}: {}", path_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  const Json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return json_->is_null(); }
  // A missing key is null.
  Node at(const char* key) const {
    static const Json kNull;
    const auto found = object().find(key);
    return {found == json_->end() ? kNull : *found, fmt::format("{}.{}", path_, key)};
  }
  Node at(size_t i) const { return {(*json_)[i], fmt::format("{}[{}]", path_, i)}; }

  const Json& object() const {
    if (!json_->is_object()) bad("want an object, got {}", json_->type_name());
    return *json_;
  }
  // The number of elements.
  size_t array() const {
    if (!json_->is_array()) bad("want an array, got {}", json_->type_name());
    return json_->size();
  }
  const std::string& string() const {
    if (!json_->is_string()) bad("want a string, got {}", json_->type_name());
    return json_->get_ref<const std::string&>();
  }
  bool boolean(bool if_missing) const {
    if (is_null()) return if_missing;
    if (!json_->is_boolean()) bad("want a boolean, got {}", json_->type_name());
    return json_->get<bool>();
  }
  // An id below `count`. Ids have no holes, so one above the number of tokens is invalid, and no
  // memory is allocated for it.
  int32_t id(size_t count) const {
    if (!json_->is_number_integer()) bad("want an id, got {}", json_->type_name());
    const bool fits = json_->is_number_unsigned() && json_->get<uint64_t>() < count;
    if (!fits) bad("id {} is outside 0..{} (ids must have no holes)", json_->dump(), count - 1);
    return static_cast<int32_t>(json_->get<uint64_t>());
  }
  // For settings that we do not support: null, false, "" and 0 all mean "off".
  void must_be_off() const {
    const bool off = is_null() || *json_ == false || *json_ == "" || *json_ == 0.0;
    if (!off) unsupported("is set; only null is supported");
  }
  void must_be(std::string_view wanted) const {
    if (string() != wanted)
      unsupported("'{}' is not supported, only '{}'", shown(string()), wanted);
  }

 private:
  const Json* json_;
  std::string path_;
};

class Reader {
 public:
  explicit Reader(const Node& root) : root_(root), vocab_(root.at("model").at("vocab")) {}

  TokenizerFile run() {
    for (const char* key : {"truncation", "padding"}) root_.at(key).must_be_off();
    check_normalizer();
    root_.at("decoder").at("type").must_be("ByteLevel");
    read_pre_tokenizer();
    read_added_tokens();
    read_vocab();
    read_model_settings();
    find_byte_ids();
    read_merges();
    return std::move(file_);
  }

 private:
  void check_normalizer() const;
  void read_pre_tokenizer();
  void read_split(const Node& step);
  void read_byte_level(const Node& step);
  void read_added_tokens();
  AddedToken read_added_token(const Node& node, size_t max_tokens);
  void read_vocab();
  void read_model_settings();
  void find_byte_ids();
  void read_merges();
  Merge read_merge(const Node& node);
  int32_t merge_part(const Node& node, std::string_view text);

  Node root_, vocab_;
  TokenizerFile file_;
  std::unordered_map<std::string_view, int32_t>
      ids_;  // text of the vocab -> id; views into the JSON
};

// null or, as in DeepSeek's older files, an empty sequence.
void Reader::check_normalizer() const {
  const Node node = root_.at("normalizer");
  if (node.is_null()) return;
  node.at("type").must_be("Sequence");
  if (node.at("normalizers").array() != 0) node.unsupported("must be null or empty");
}

void Reader::read_pre_tokenizer() {
  const Node node = root_.at("pre_tokenizer");
  node.at("type").must_be("Sequence");
  const Node steps = node.at("pretokenizers");
  const size_t count = steps.array();
  if (count == 0) steps.bad("is empty; the last step must be ByteLevel");
  if (count > kMaxPatterns) steps.unsupported("has {} steps; at most {}", count, kMaxPatterns);
  for (size_t i = 0; i + 1 < count; ++i) read_split(steps.at(i));
  read_byte_level(steps.at(count - 1));
}

void Reader::read_split(const Node& step) {
  step.at("type").must_be("Split");
  step.at("behavior").must_be("Isolated");
  step.at("invert").must_be_off();
  const Node pattern = step.at("pattern");
  if (!pattern.object().contains("Regex")) pattern.unsupported("only Regex patterns are supported");
  file_.patterns.push_back(pattern.at("Regex").string());
}

void Reader::read_byte_level(const Node& step) {
  step.at("type").must_be("ByteLevel");
  for (const char* key : {"add_prefix_space", "use_regex"}) {
    if (step.at(key).boolean(true)) step.at(key).unsupported("must be false");
  }
}

void Reader::read_added_tokens() {
  const Node list = root_.at("added_tokens");
  if (list.is_null()) return;
  const size_t max_tokens = list.array() + vocab_.object().size();
  std::unordered_set<std::string_view> contents;
  std::unordered_set<int32_t> ids;
  file_.added.reserve(list.array());  // `contents` holds views into its strings
  for (size_t i = 0; i < list.array(); ++i) {
    const AddedToken& token = file_.added.emplace_back(read_added_token(list.at(i), max_tokens));
    if (!contents.insert(token.content).second)
      list.at(i).bad("'{}' occurs twice", shown(token.content));
    if (!ids.insert(token.id).second) list.at(i).bad("id {} occurs twice", token.id);
  }
}

AddedToken Reader::read_added_token(const Node& node, size_t max_tokens) {
  AddedToken token;
  token.id = node.at("id").id(max_tokens);
  token.content = node.at("content").string();
  token.special = node.at("special").boolean(false);
  token.normalized = node.at("normalized").boolean(!token.special);
  if (token.content.empty()) node.at("content").bad("is empty");
  for (const char* key : {"lstrip", "rstrip", "single_word"}) node.at(key).must_be_off();
  return token;
}

// Every id below the number of tokens must be taken exactly once, by the vocab or by an added
// token. A text that is in both lists is one token.
void Reader::read_vocab() {
  const Json& vocab = vocab_.object();
  std::unordered_map<std::string_view, int32_t> added;
  for (const AddedToken& token : file_.added) added.emplace(token.content, token.id);
  size_t count = vocab.size();
  for (const AddedToken& token : file_.added) count += vocab.contains(token.content) ? 0 : 1;

  ids_.reserve(vocab.size());
  file_.tokens.resize(count);
  std::vector<bool> taken(count);
  const auto take = [&](const Node& node, int32_t id, std::string bytes) {
    if (static_cast<size_t>(id) >= count) node.bad("id {} but only {} tokens", id, count);
    if (taken[id]) node.bad("id {} occurs twice", id);
    taken[id] = true;
    file_.tokens[id] = std::move(bytes);
  };
  for (const auto& [text, value] : vocab.items()) {
    const Node node(value, fmt::format("{}['{}']", vocab_.path(), shown(text)));
    const int32_t id = node.id(count);
    std::optional<std::string> bytes = bytes_of_token_text(text);
    if (const auto also = added.find(text); also != added.end()) {
      if (also->second != id) node.bad("id {}, but {} in added_tokens", id, also->second);
      if (bytes && *bytes != text)
        node.unsupported("is an added token but stands for other bytes in the vocab");
      bytes = text;
    }
    if (!bytes) node.bad("has a character outside the byte alphabet and is not an added token");
    take(node, id, std::move(*bytes));
    ids_.emplace(text, id);
    file_.vocab_ids.push_back(id);
  }
  for (size_t i = 0; i < file_.added.size(); ++i) {
    const AddedToken& token = file_.added[i];
    if (!ids_.contains(token.content))
      take(root_.at("added_tokens").at(i), token.id, token.content);
  }
}

void Reader::read_model_settings() {
  const Node model = root_.at("model");
  model.at("type").must_be("BPE");
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                          "byte_fallback"}) {
    model.at(key).must_be_off();
  }
  file_.ignore_merges = model.at("ignore_merges").boolean(false);
}

// Every byte has a token, so no text is unknown and unk_token has no effect.
void Reader::find_byte_ids() {
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(token_text_of_bytes(std::string(1, static_cast<char>(byte))));
    if (found == ids_.end()) vocab_.bad("no token for the byte 0x{:02x}", byte);
    file_.byte_ids[byte] = found->second;
  }
}

void Reader::read_merges() {
  const Node list = root_.at("model").at("merges");
  const size_t count = list.array();
  file_.merges.reserve(count);
  std::unordered_set<uint64_t> pairs(count);
  for (size_t i = 0; i < count; ++i) {
    const Node node = list.at(i);
    const Merge merge = file_.merges.emplace_back(read_merge(node));
    const uint64_t pair =
        uint64_t{static_cast<uint32_t>(merge.left)} << 32 | static_cast<uint32_t>(merge.right);
    if (!pairs.insert(pair).second) node.bad("occurs twice");
  }
}

// "left right" or ["left", "right"].
Merge Reader::read_merge(const Node& node) {
  std::string_view left, right;
  if (node.json().is_string()) {
    const std::string_view text = node.string();
    const size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) {
      node.bad("want two tokens with a space between, got '{}'", shown(text));
    }
    left = text.substr(0, space);
    right = text.substr(space + 1);
  } else {
    if (node.array() != 2) node.bad("want two tokens, got {}", node.array());
    left = node.at(size_t{0}).string();
    right = node.at(size_t{1}).string();
  }
  return {merge_part(node, left), merge_part(node, right),
          merge_part(node, std::string(left) + std::string(right))};
}

int32_t Reader::merge_part(const Node& node, std::string_view text) {
  const auto found = ids_.find(text);
  if (found == ids_.end()) node.bad("'{}' is not in the vocab", shown(text));
  return found->second;
}

}  // namespace

TokenizerFile parse_tokenizer_json(std::string_view json, std::string_view what) {
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::parse_error& error) {
    fail(ErrorCode::kBadInput, "{}: not valid JSON at byte {}", what, error.byte);
  } catch (const Json::exception&) {  // a number that fits no type
    fail(ErrorCode::kBadInput, "{}: not valid JSON", what);
  }
  return Reader(Node(root, std::string(what))).run();
}

}  // namespace dsv4
