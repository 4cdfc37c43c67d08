#include "dsv4/loader/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "dsv4/base/error.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using test::error_of;
using test::says;

std::string with_length(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + rest;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string data(data_bytes, '\0');
  for (size_t i = 0; i < data_bytes; ++i) data[i] = static_cast<char>(i);
  return with_length(header.size(), header + data);
}

// A file whose header is {MEMBER,MEMBER,...}.
std::string file_with(const std::vector<std::string>& members, size_t data_bytes) {
  return file_of(fmt::format("{{{}}}", fmt::join(members, ",")), data_bytes);
}

SafetensorsIndex parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "FILE");
}

std::string tensor_json(const std::string& name, const std::string& shape,
                        const std::string& offsets, const std::string& dtype = "F32") {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

TEST(ParseSafetensors, ReadsTensorsAndMetadata) {
  const std::string file = file_with(
      {R"("__metadata__":{"format":"pt"})", tensor_json("b", "[2,3]", "[8,32]"),
       tensor_json("a", "[]", "[0,8]", "I64"), tensor_json("empty", "[4,0]", "[8,8]", "U8")},
      32);
  const SafetensorsIndex index = parse(file);
  ASSERT_EQ(index.tensors.size(), 3u);
  EXPECT_EQ(index.metadata.at("format"), "pt");
  EXPECT_EQ(to_string(index.tensors.at("b")), "[2, 3] F32");
  EXPECT_EQ(to_string(index.tensors.at("a")), "[] I64");
  EXPECT_EQ(to_string(index.tensors.at("empty")), "[4, 0] U8");
  const auto* data = reinterpret_cast<const std::byte*>(file.data() + file.size() - 32);
  EXPECT_EQ(index.tensors.at("a").data, data);
  EXPECT_EQ(index.tensors.at("b").data, data + 8);
  EXPECT_EQ(index.tensors.at("b").stride[0], 3);
}

TEST(ParseSafetensors, ReadsEveryDtype) {
  for (const char* dtype : {"F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E8M0", "I64", "I32", "I16",
                            "I8", "U8", "BOOL"}) {
    DType want;
    ASSERT_TRUE(parse_dtype(dtype, &want));
    const int64_t bytes = 3 * item_bytes(want);
    const std::string x = tensor_json("x", "[3]", fmt::format("[0,{}]", bytes), dtype);
    EXPECT_EQ(parse(file_with({x}, static_cast<size_t>(bytes))).tensors.at("x").dtype, want);
  }
}

TEST(ParseSafetensors, AcceptsNoTensors) {
  EXPECT_TRUE(parse(file_of("{}   ", 0)).tensors.empty());
  EXPECT_TRUE(parse(file_of("{\"__metadata__\":{}}", 0)).tensors.empty());
}

struct Malformed {
  const char* name;
  std::string file;
  const char* error;
};

std::string one(const std::string& shape, const std::string& offsets, size_t data_bytes,
                const std::string& dtype = "F32") {
  return file_with({tensor_json("x", shape, offsets, dtype)}, data_bytes);
}

std::string two(const std::string& first, const std::string& second, size_t data_bytes) {
  return file_with({tensor_json("a", "[2]", first), tensor_json("b", "[2]", second)}, data_bytes);
}

std::vector<Malformed> framing_table() {
  const std::string good = one("[2]", "[0,8]", 8);
  return {
      {"empty file", "", "0 bytes are too few"},
      {"seven bytes", "1234567", "7 bytes are too few"},
      {"length only", with_length(0, ""), "does not start with '{'"},
      {"length one beyond", with_length(3, "{}"), "header of 3 bytes in a file of 10"},
      {"length all ones", with_length(~uint64_t{0}, "{}"), "header of 18446744073709551615 bytes"},
      {"length near overflow", with_length(~uint64_t{7}, "{}"), "exceeds the limit"},
      {"over the cap", with_length(kMaxSafetensorsHeader + 1, "{}"), "exceeds the limit"},
      {"truncated header", good.substr(0, 30), "in a file of 30 bytes"},
      {"truncated data", good.substr(0, good.size() - 1), "ends at byte 8 of the data, but"},
      {"trailing garbage", good + "x", "the tensors end at byte 8 of 9"},
      {"leading blank", file_of(" {}", 0), "does not start with '{'"},
      {"byte order mark", file_of("\xef\xbb\xbf{}", 0), "does not start with '{'"},
      {"lfs pointer", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
  };
}

std::vector<Malformed> json_table() {
  std::string nul_at_end = "{}";
  nul_at_end += '\0';
  nul_at_end += "garbage";
  return {
      {"not json", file_of("{x}", 0), "not valid JSON at byte 2"},
      {"cut json", file_of("{\"x\":{", 0), "not valid JSON"},
      {"two documents", file_of("{}{}", 0), "not valid JSON at byte 3"},
      {"nul byte", file_of(nul_at_end, 0), "NUL byte at byte 2"},
      {"bad utf-8", file_of("{\"\xff\":1}", 0), "not valid JSON"},
      {"long token", file_of("{\"" + std::string(100000, 'x'), 0), "xxx..."},
      {"deep arrays", file_of("{\"x\":" + std::string(1 << 20, '['), 0), "an array is not allowed"},
      {"deep objects", file_of("{\"x\":{\"shape\":{", 0), "x: shape: an object is not allowed"},
      {"array in shape", one("[[2]]", "[0,8]", 8), "x: shape: an array is not allowed"},
      {"tensor is null", file_of("{\"x\":null}", 0), "x: null is not allowed"},
      {"tensor is text", file_of("{\"x\":\"y\"}", 0), "x: a string is not allowed"},
      {"metadata is text", file_of("{\"__metadata__\":\"y\"}", 0), "a string is not allowed"},
      {"metadata number", file_of("{\"__metadata__\":{\"k\":1}}", 0), "k: a number is not allowed"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "a second __metadata__"},
      {"metadata key twice", file_of(R"({"__metadata__":{"k":"","k":""}})", 0),
       "k: a second value"},
      {"unknown field", file_of("{\"x\":{\"strides\":[1]}}", 0),
       "strides: this field is not allowed"},
      {"field twice", file_of(R"({"x":{"dtype":"F32","dtype":"F32"}})", 0), "dtype: a second"},
      {"no dtype", file_of(R"({"x":{"shape":[],"data_offsets":[0,4]}})", 4), "x: no dtype"},
      {"no shape", file_of(R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4), "x: no shape"},
      {"no offsets", file_of(R"({"x":{"dtype":"F32","shape":[]}})", 4), "x: no data_offsets"},
      {"empty tensor object", file_of("{\"x\":{}}", 0), "x: no dtype"},
      {"empty name", file_with({tensor_json("", "[]", "[0,4]")}, 4), "has 0 bytes"},
      {"long name", file_with({tensor_json(std::string(1025, 'n'), "[]", "[0,4]")}, 4),
       "has 1025 bytes"},
      {"nul in name", file_with({tensor_json("a\\u0000b", "[]", "[0,4]")}, 4),
       "'a?b' holds a control character"},
      {"newline in name", file_with({tensor_json("a\\nb", "[]", "[0,4]")}, 4), "'a?b'"},
      {"same name twice",
       file_with({tensor_json("x", "[]", "[0,4]"), tensor_json("x", "[]", "[4,8]")}, 8),
       "x occurs twice"},
  };
}

std::vector<Malformed> number_table() {
  return {
      {"unknown dtype", one("[2]", "[0,8]", 8, "F7"), "x: unknown dtype 'F7'"},
      {"dtype is number", file_of("{\"x\":{\"dtype\":1}}", 0), "dtype: a number is not allowed"},
      {"rank 9", one("[1,1,1,1,1,1,1,1,1]", "[0,4]", 4), "a rank above 4"},
      {"negative extent", one("[-2]", "[0,8]", 8), "shape: a negative number"},
      {"float extent", one("[2.0]", "[0,8]", 8), "not a 64-bit integer"},
      {"exponent extent", one("[2e0]", "[0,8]", 8), "not a 64-bit integer"},
      {"huge extent", one("[18446744073709551615]", "[0,8]", 8), "an extent of 184467440737095516"},
      {"beyond 64 bits", one("[99999999999999999999]", "[0,8]", 8), "not a 64-bit integer"},
      {"text extent", one("[\"2\"]", "[0,8]", 8), "shape: a string"},
      {"product wraps to 8", one("[4611686018427387905,2]", "[0,8]", 8), "overflows 64 bits"},
      {"product wraps to 0", one("[4294967296,4294967296]", "[0,0]", 0), "overflows 64 bits"},
      {"zero hides overflow", one("[0,4611686018427387904,4]", "[0,0]", 0), "overflows 64 bits"},
      {"item size overflows", one("[4611686018427387904]", "[0,8]", 8), "overflows 64 bits"},
      {"too few bytes", one("[3]", "[0,8]", 8), "x: the shape needs 12 bytes, data_offsets are [0"},
      {"too many bytes", one("[1]", "[0,8]", 8), "needs 4 bytes"},
      {"backwards", one("[2]", "[8,0]", 8), "data_offsets are [8, 0]"},
      {"backwards wraps", one("[2]", "[18446744073709551608,0]", 8),
       "data_offsets are [1844674407"},
      {"negative offset", one("[2]", "[-8,0]", 8), "data_offsets: a negative number"},
      {"float offset", one("[2]", "[0.0,8.0]", 8), "not a 64-bit integer"},
      {"huge offset", one("[2]", "[99999999999999999999,8]", 8), "not a 64-bit integer"},
      {"offsets past the end", one("[2]", "[8000000000,8000000008]", 8), "ends at byte 8000000008"},
      {"one offset", one("[2]", "[8]", 8), "other than 2 numbers"},
      {"three offsets", one("[2]", "[0,8,8]", 8), "a third number"},
      {"overlap", two("[0,8]", "[4,12]", 12), "b starts at byte 4 of the data, but the one before"},
      {"same bytes", two("[0,8]", "[0,8]", 8), "(overlap)"},
      {"hole", two("[0,8]", "[12,20]", 20), "(hole)"},
      {"hole at the start", one("[2]", "[8,16]", 16), "(hole)"},
      {"no tensors but data", file_of("{}", 5), "the tensors end at byte 0 of 5"},
  };
}

TEST(ParseSafetensors, RejectsMalformedFilesWithOneLine) {
  std::vector<Malformed> table = framing_table();
  for (const auto& more : {json_table(), number_table()})
    table.insert(table.end(), more.begin(), more.end());
  for (const Malformed& malformed : table) {
    SCOPED_TRACE(malformed.name);
    const std::string text = error_of(ErrorCode::kBadInput, [&] { parse(malformed.file); });
    EXPECT_TRUE(says(text, malformed.error));
    EXPECT_TRUE(says(text, "FILE"));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_LT(text.size(), 400u) << text;
  }
}

TEST(ParseSafetensors, RejectsEveryTruncation) {
  const std::string good = two("[0,8]", "[8,16]", 16);
  EXPECT_EQ(parse(good).tensors.size(), 2u);
  for (size_t length = 0; length < good.size(); ++length) {
    SCOPED_TRACE(length);
    error_of(ErrorCode::kBadInput, [&] { parse(good.substr(0, length)); });
  }
}

// As many tensors as V4-Flash has (docs/spec/dsv4.md 10.1).
TEST(ParseSafetensors, ReadsLargeHeaders) {
  constexpr int64_t kTensors = 69187;
  std::vector<std::string> members;
  for (int64_t i = 0; i < kTensors; ++i) {
    members.push_back(tensor_json(fmt::format("layers.7.ffn.experts.{}.w1.weight", i), "[1,1,1]",
                                  fmt::format("[{},{}]", i, i + 1), "I8"));
  }
  const std::string file = file_with(members, kTensors);
  const SafetensorsIndex index = parse(file);
  EXPECT_EQ(index.tensors.size(), static_cast<size_t>(kTensors));
  EXPECT_EQ(*index.tensors.at("layers.7.ffn.experts.300.w1.weight").as<int8_t>(), 300 - 256);
}

TEST(SafetensorsFile, CopiesOnlyMisalignedTensors) {
  const test::TempFolder folder;
  // Data start at a multiple of 8: "byte" and "aligned" are aligned, "odd" is not.
  std::string header = fmt::format("{{{},{},{}}}", tensor_json("aligned", "[2]", "[0,8]"),
                                   tensor_json("byte", "[1]", "[8,9]", "U8"),
                                   tensor_json("odd", "[2]", "[9,13]", "BF16"));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const SafetensorsFile file(folder.write("x.safetensors", file_of(header, 13)));
  EXPECT_EQ(file.num_copied(), 1u);
  const ConstTensorView odd = file.tensors().at("odd");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(odd.data) % 2, 0u);
  EXPECT_EQ(odd.as<uint16_t>()[0], 0x0a09);
  EXPECT_EQ(odd.as<uint16_t>()[1], 0x0c0b);
  EXPECT_EQ(file.tensors().at("byte").as<uint8_t>()[0], 8);
  EXPECT_EQ(file.tensors().at("aligned").as<uint32_t>()[1], 0x07060504u);
}

TEST(SafetensorsFile, ViewsSurviveAMove) {
  const test::TempFolder folder;
  SafetensorsFile first(folder.write("x.safetensors", one("[2]", "[0,8]", 8)));
  const SafetensorsFile second(std::move(first));
  EXPECT_EQ(second.tensors().at("x").as<uint32_t>()[0], 0x03020100u);
}

TEST(SafetensorsFile, ErrorsNameTheFile) {
  const test::TempFolder folder;
  const std::string missing = folder.file("none.safetensors");
  EXPECT_EQ(error_of(ErrorCode::kIo, [&] { SafetensorsFile file(missing); }),
            fmt::format("cannot open {}: No such file or directory", missing));
  const std::string empty = folder.write("empty.safetensors", "");
  EXPECT_TRUE(says(error_of(ErrorCode::kBadInput, [&] { SafetensorsFile file(empty); }), empty));
}

}  // namespace
}  // namespace dsv4
