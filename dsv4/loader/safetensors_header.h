// The grammar of a safetensors file's JSON header; parse_safetensors() checks whether the numbers
// are consistent.

#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "dsv4/loader/strict_json.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<uint64_t, 2> offsets{};  // begin and end in the data
};

class HeaderReader final : public StrictJson {
 public:
  using StrictJson::StrictJson;

  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(size_t) override;
  bool key(string_t& text) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool string(string_t& text) override;
  bool number_unsigned(number_unsigned_t value) override;

 private:
  enum class At { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum Field : unsigned { kNone = 0, kDtype = 1, kShapeField = 2, kOffsetsField = 4, kAll = 7 };

  std::string place() const override;
  void tensor_name(const std::string& name);
  void field(const std::string& name);
  HeaderEntry& tensor() { return entries.back(); }

  At at_ = At::kStart;
  std::string name_, key_;      // top-level key; key below it
  bool have_metadata_ = false;  // "__metadata__" was seen
  Field field_ = kNone;         // field whose value comes next
  unsigned seen_ = 0;           // bit set of Field
  size_t num_offsets_ = 0;
};

}  // namespace dsv4
