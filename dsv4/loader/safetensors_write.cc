// The writing half of safetensors.h.

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/loader/atomic_file.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/loader/strict_json.h"

namespace dsv4 {
namespace {

using Named = std::pair<std::string, ConstTensorView>;

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::kInvalidArgument, "'{}' is not valid UTF-8", quotable(text));
  }
}

void check_tensors(const std::vector<Named>& tensors) {
  std::set<std::string_view> names;
  for (const auto& [name, view] : tensors) {
    DSV4_CHECK(!name.empty() && name.size() <= kMaxTensorName && name != "__metadata__" &&
                   std::none_of(name.begin(), name.end(),
                                [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }),
               "tensor name '{}'", quotable(name));
    DSV4_CHECK(names.insert(name).second, "{} is there twice", name);
    DSV4_CHECK(view.is_contiguous(), "{}: {} is not contiguous", name, to_string(view));
    DSV4_CHECK(!view.empty() || view.numel() == 0, "{}: no data", name);
  }
}

std::string header_of(const std::vector<const Named*>& order,
                      const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    const char* comma = "";
    for (const auto& [key, value] : metadata) {
      text += fmt::format("{}{}:{}", comma, quoted(key), quoted(value));
      comma = ",";
    }
    text += '}';
  }
  int64_t begin = 0;
  for (const Named* named : order) {
    const ConstTensorView& view = named->second;
    separate();
    text +=
        fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[", quoted(named->first), name(view.dtype));
    for (int i = 0; i < view.rank; ++i) text += fmt::format("{}{}", i > 0 ? "," : "", view.dim(i));
    text += fmt::format("],\"data_offsets\":[{},{}]}}", begin, begin + view.bytes());
    begin += view.bytes();
  }
  text += '}';
  // Blanks up to a multiple of 8 align the data.
  text.resize(static_cast<size_t>(align_up(static_cast<int64_t>(text.size()), 8)), ' ');
  DSV4_CHECK(text.size() <= kMaxSafetensorsHeader, "a header of {} bytes exceeds the limit of {}",
             text.size(), kMaxSafetensorsHeader);
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<Named>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_tensors(tensors);
  std::vector<const Named*> order;
  for (const Named& named : tensors) order.push_back(&named);
  std::stable_sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return item_bytes(a->second.dtype) > item_bytes(b->second.dtype);
  });
  const std::string header = header_of(order, metadata);
  const uint64_t length = header.size();

  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const Named* named : order) {
    const ConstTensorView& view = named->second;
    file.write({view.data, static_cast<size_t>(view.bytes())});
  }
  file.commit();
}

}  // namespace dsv4
