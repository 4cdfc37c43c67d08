#include "dsv4/loader/shallow_json.h"

#include "dsv4/base/error.h"

namespace dsv4 {

using Json = nlohmann::json;

Json parse_shallow_json(std::string_view text, const std::string& what, int64_t max_keys) {
  if (text.find('\0') != text.npos) fail(ErrorCode::kBadInput, "{}: holds a NUL byte", what);
  int64_t keys = 0;
  using Event = Json::parse_event_t;
  const auto shallow = [&](int depth, Event event, Json&) {
    if (event == Event::key && ++keys > max_keys)
      fail(ErrorCode::kBadInput, "{}: more than {} keys", what, max_keys);
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= kMaxJsonDepth)
      fail(ErrorCode::kBadInput, "{}: nested deeper than {} levels", what, kMaxJsonDepth);
    return true;
  };
  Json root = Json::parse(text, shallow, /*allow_exceptions=*/false);
  if (root.is_discarded()) fail(ErrorCode::kBadInput, "{}: not valid JSON", what);
  return root;
}

}  // namespace dsv4
