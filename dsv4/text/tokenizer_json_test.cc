// Untrusted tokenizer.json: invalid input gives one clear error of the right kind.

#include "dsv4/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <functional>

#include "dsv4/base/error.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

using nlohmann::json;

std::string error_of(std::string_view text) {
  try {
    parse_tokenizer_json(text, "F");
  } catch (const Error& error) {
    return std::string(name(error.code())) + ": " + error.what();
  }
  return "no error";
}

// The error of a valid file with one change.
std::string error_after(const std::function<void(json&)>& change) {
  json file = test::tiny_tokenizer_json({"ab", "abc"}, json::parse(R"([["a","b"],["ab","c"]])"));
  file["added_tokens"] = json::parse(R"([{"id":258,"content":"<s>","special":true}])");
  change(file);
  return error_of(file.dump());
}

// The error of a valid file with the value at a JSON pointer replaced.
std::string error_with(const char* pointer, const json& value) {
  return error_after([&](json& file) { file[json::json_pointer(pointer)] = value; });
}

json added(const json& id, const json& content) {
  return {{"id", id}, {"content", content}};
}

TEST(TokenizerJson, AcceptsTheUnchangedFile) {
  EXPECT_EQ(error_after([](json&) {}), "no error");
  EXPECT_EQ(error_with("/post_processor", {{"type", "TemplateProcessing"}}), "no error");
  EXPECT_EQ(error_with("/normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}}),
            "no error");
  EXPECT_EQ(error_with("/model/continuing_subword_prefix", ""), "no error");
  EXPECT_EQ(error_with("/model/dropout", 0.0), "no error");
}

TEST(TokenizerJson, RejectsInvalidJson) {
  for (const char* text : {"", "{", "[", "{}x", "\"\\ud800\"", "\xff", "nul", "{\"model\":"}) {
    EXPECT_TRUE(error_of(text).starts_with("bad input: F: ")) << error_of(text);
  }
  EXPECT_EQ(error_of("[]"), "bad input: F: want an object, got array");
  EXPECT_EQ(error_of("null"), "bad input: F: want an object, got null");
  EXPECT_EQ(error_of("{}"), "bad input: F.model: want an object, got null");
  std::string deep(1 << 20, '[');
  EXPECT_TRUE(error_of(deep).starts_with("bad input: F: "));
  deep.append(1 << 20, ']');
  EXPECT_EQ(error_of(deep), "bad input: F: want an object, got array");
}

TEST(TokenizerJson, ChecksIds) {
  EXPECT_EQ(
      error_with("/model/vocab/ab", 4000000000u),
      "bad input: F.model.vocab['ab']: id 4000000000 is outside 0..258 (ids must have no holes)");
  EXPECT_EQ(error_with("/model/vocab/ab", 259),
            "bad input: F.model.vocab['ab']: id 259 is outside 0..258 (ids must have no holes)");
  EXPECT_EQ(error_with("/model/vocab/ab", -1),
            "bad input: F.model.vocab['ab']: id -1 is outside 0..258 (ids must have no holes)");
  EXPECT_EQ(error_with("/model/vocab/ab", 257),
            "bad input: F.model.vocab['abc']: id 257 occurs twice");
  EXPECT_EQ(error_with("/model/vocab/ab", 1.5),
            "bad input: F.model.vocab['ab']: want an id, got number");
  EXPECT_EQ(error_with("/model/vocab/ab", "1"),
            "bad input: F.model.vocab['ab']: want an id, got string");
  EXPECT_EQ(error_with("/added_tokens/0/id", 257),
            "bad input: F.added_tokens[0]: id 257 occurs twice");
  EXPECT_EQ(error_with("/added_tokens/0/id", UINT64_MAX),
            "bad input: F.added_tokens[0].id: id 18446744073709551615 is outside 0..258 (ids must "
            "have no holes)");
  EXPECT_EQ(error_with("/added_tokens/1", added(258, "x")),
            "bad input: F.added_tokens[1]: id 258 occurs twice");
}

TEST(TokenizerJson, ChecksAddedTokens) {
  EXPECT_EQ(error_with("/added_tokens", 3), "bad input: F.added_tokens: want an array, got number");
  EXPECT_EQ(error_with("/added_tokens/0", 3),
            "bad input: F.added_tokens[0]: want an object, got number");
  EXPECT_EQ(error_with("/added_tokens/0/content", ""),
            "bad input: F.added_tokens[0].content: is empty");
  EXPECT_EQ(error_with("/added_tokens/0/content", nullptr),
            "bad input: F.added_tokens[0].content: want a string, got null");
  EXPECT_EQ(error_with("/added_tokens/0/special", 1),
            "bad input: F.added_tokens[0].special: want a boolean, got number");
  EXPECT_EQ(error_with("/added_tokens/1", added(257, "<s>")),
            "bad input: F.added_tokens[1]: '<s>' occurs twice");
  EXPECT_EQ(error_with("/added_tokens/1", added(2, "ab")),
            "bad input: F.model.vocab['ab']: id 256, but 2 in added_tokens");
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    EXPECT_EQ(
        error_with(fmt::format("/added_tokens/0/{}", key).c_str(), true),
        fmt::format("unsupported: F.added_tokens[0].{}: is set; only null is supported", key));
  }
  // U+0120 is how the vocab writes a space, so this text would have two meanings.
  EXPECT_EQ(
      error_with("/added_tokens/1", added(220, "Ġ")),
      "unsupported: F.model.vocab['Ġ']: is an added token but stands for other bytes in the vocab");
}

TEST(TokenizerJson, ChecksTheModel) {
  EXPECT_EQ(error_with("/model", 1), "bad input: F.model: want an object, got number");
  EXPECT_EQ(error_with("/model/type", "WordPiece"),
            "unsupported: F.model.type: 'WordPiece' is not supported, only 'BPE'");
  EXPECT_EQ(error_with("/model/vocab", json::array()),
            "bad input: F.model.vocab: want an object, got array");
  EXPECT_EQ(error_after([](json& file) {
              file["model"]["vocab"].erase("a");
              file["model"]["vocab"]["漢"] = 64;
            }),
            "bad input: F.model.vocab['漢']: has a character outside the byte alphabet and is not "
            "an added token");
  EXPECT_EQ(error_after([](json& file) {
              file["model"]["vocab"].erase("a");
              file["model"]["vocab"]["zz"] = 64;
            }),
            "bad input: F.model.vocab: no token for the byte 0x61");
  EXPECT_EQ(error_after([](json& file) {
              file["model"]["vocab"].clear();
              file["added_tokens"].clear();
            }),
            "bad input: F.model.vocab: no token for the byte 0x00");
  const json on = {{"dropout", 0.1},
                   {"continuing_subword_prefix", "##"},
                   {"end_of_word_suffix", "</w>"},
                   {"fuse_unk", true},
                   {"byte_fallback", true}};
  for (const auto& [key, value] : on.items()) {
    EXPECT_EQ(error_with(("/model/" + key).c_str(), value),
              fmt::format("unsupported: F.model.{}: is set; only null is supported", key));
  }
  EXPECT_EQ(error_with("/model/ignore_merges", "yes"),
            "bad input: F.model.ignore_merges: want a boolean, got string");
}

TEST(TokenizerJson, ChecksMerges) {
  EXPECT_EQ(error_with("/model/merges", nullptr),
            "bad input: F.model.merges: want an array, got null");
  EXPECT_EQ(error_with("/model/merges/1", 5),
            "bad input: F.model.merges[1]: want an array, got number");
  EXPECT_EQ(error_with("/model/merges/1", {"ab"}),
            "bad input: F.model.merges[1]: want two tokens, got 1");
  EXPECT_EQ(error_with("/model/merges/1", {"ab", 1}),
            "bad input: F.model.merges[1][1]: want a string, got number");
  EXPECT_EQ(error_with("/model/merges/1", "abc"),
            "bad input: F.model.merges[1]: want two tokens with a space between, got 'abc'");
  EXPECT_EQ(error_with("/model/merges/1", "a b c"),
            "bad input: F.model.merges[1]: want two tokens with a space between, got 'a b c'");
  EXPECT_EQ(error_with("/model/merges/1", "xyz c"),
            "bad input: F.model.merges[1]: 'xyz' is not in the vocab");
  EXPECT_EQ(error_with("/model/merges/1", " ab"),
            "bad input: F.model.merges[1]: '' is not in the vocab");
  EXPECT_EQ(error_with("/model/merges/1", "c c"),
            "bad input: F.model.merges[1]: 'cc' is not in the vocab");
  EXPECT_EQ(error_with("/model/merges/1", "a b"), "bad input: F.model.merges[1]: occurs twice");
}

TEST(TokenizerJson, NamesUnsupportedSteps) {
  EXPECT_EQ(error_with("/normalizer", {{"type", "NFC"}}),
            "unsupported: F.normalizer.type: 'NFC' is not supported, only 'Sequence'");
  EXPECT_EQ(error_with("/normalizer",
                       json::parse(R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})")),
            "unsupported: F.normalizer: must be null or empty");
  EXPECT_EQ(error_with("/truncation", {{"max_length", 10}}),
            "unsupported: F.truncation: is set; only null is supported");
  EXPECT_EQ(error_with("/decoder", nullptr), "bad input: F.decoder: want an object, got null");
  EXPECT_EQ(error_with("/decoder/type", "WordPiece"),
            "unsupported: F.decoder.type: 'WordPiece' is not supported, only 'ByteLevel'");
  EXPECT_EQ(error_with("/pre_tokenizer/type", "Metaspace"),
            "unsupported: F.pre_tokenizer.type: 'Metaspace' is not supported, only 'Sequence'");
  const std::string steps = "/pre_tokenizer/pretokenizers";
  const std::string path = "F.pre_tokenizer.pretokenizers";
  const auto with = [&](const char* key, const json& value) {
    return error_with((steps + key).c_str(), value);
  };
  EXPECT_EQ(with("", json::array()),
            "bad input: " + path + ": is empty; the last step must be ByteLevel");
  EXPECT_EQ(with("/0/type", "Digits"),
            "unsupported: " + path + "[0].type: 'Digits' is not supported, only 'Split'");
  EXPECT_EQ(with("/0/behavior", "Removed"),
            "unsupported: " + path + "[0].behavior: 'Removed' is not supported, only 'Isolated'");
  EXPECT_EQ(with("/0/invert", true),
            "unsupported: " + path + "[0].invert: is set; only null is supported");
  EXPECT_EQ(with("/0/pattern", {{"String", " "}}),
            "unsupported: " + path + "[0].pattern: only Regex patterns are supported");
  EXPECT_EQ(with("/1/type", "Split"),
            "unsupported: " + path + "[1].type: 'Split' is not supported, only 'ByteLevel'");
  EXPECT_EQ(with("/1/add_prefix_space", true),
            "unsupported: " + path + "[1].add_prefix_space: must be false");
  EXPECT_EQ(with("/1/use_regex", nullptr), "unsupported: " + path + "[1].use_regex: must be false");
}

// A file truncated anywhere is an error.
TEST(TokenizerJson, RejectsEveryPrefix) {
  const std::string whole = test::tiny_tokenizer_json({"ab"}).dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_TRUE(error_of(whole.substr(0, size)).starts_with("bad input: F: ")) << size;
  }
}

}  // namespace
}  // namespace dsv4
