#include "dsv4/loader/safetensors_layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {
namespace {

using Named = std::pair<std::string, TensorMeta>;

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::kInvalidArgument, "'{}' is not valid UTF-8", quotable(text));
  }
}

void check_names(std::span<const Named> tensors) {
  std::set<std::string_view> names;
  for (const auto& [name, meta] : tensors) {
    DSV4_CHECK(!name.empty() && name.size() <= kMaxTensorName && name != "__metadata__" &&
                   std::none_of(name.begin(), name.end(),
                                [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }),
               "tensor name '{}'", quotable(name));
    DSV4_CHECK(names.insert(name).second, "{} occurs twice", name);
  }
}

std::string metadata_text(const std::map<std::string, std::string>& metadata) {
  std::string text = "\"__metadata__\":{";
  const char* comma = "";
  for (const auto& [key, value] : metadata) {
    text += fmt::format("{}{}:{}", comma, quoted(key), quoted(value));
    comma = ",";
  }
  return text + '}';
}

std::string tensor_text(const Named& named, int64_t begin) {
  const auto& [tensor, meta] = named;
  std::string text =
      fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[", quoted(tensor), name(meta.dtype));
  for (int i = 0; i < meta.rank; ++i) text += fmt::format("{}{}", i > 0 ? "," : "", meta.dim(i));
  return text + fmt::format("],\"data_offsets\":[{},{}]}}", begin, begin + meta.bytes());
}

}  // namespace

SafetensorsLayout layout_safetensors(std::span<const Named> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  check_names(tensors);
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return item_bytes(tensors[a].second.dtype) > item_bytes(tensors[b].second.dtype);
  });

  SafetensorsLayout layout;
  layout.offset.resize(tensors.size());
  std::string text = "{";
  if (!metadata.empty()) text += metadata_text(metadata);
  int64_t begin = 0;
  for (const size_t i : order) {
    if (text.size() > 1) text += ',';
    text += tensor_text(tensors[i], begin);
    layout.offset[i] = begin;
    begin += tensors[i].second.bytes();
  }
  text += '}';
  // Padding to a multiple of 8 aligns the data.
  text.resize(static_cast<size_t>(align_up(static_cast<int64_t>(text.size()), 8)), ' ');
  DSV4_CHECK(text.size() <= kMaxSafetensorsHeader, "a header of {} bytes exceeds the limit of {}",
             text.size(), kMaxSafetensorsHeader);
  const uint64_t length = text.size();  // little endian, like every host we build for
  layout.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.header += text;
  for (int64_t& offset : layout.offset) offset += static_cast<int64_t>(layout.header.size());
  layout.file_bytes = static_cast<int64_t>(layout.header.size()) + begin;
  return layout;
}

}  // namespace dsv4
