#include "dsv4/server/answer.h"

#include <nlohmann/json.hpp>

#include "dsv4/base/error.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/server/json_text.h"

namespace dsv4 {

ApiError api_error(const std::exception& exception) {
  if (const auto* refused = dynamic_cast<const RequestError*>(&exception))
    return {refused->status(), refused->api_code(), refused->param(), refused->what(), 0};
  const auto* error = dynamic_cast<const Error*>(&exception);
  if (error != nullptr && error->code() == ErrorCode::kBadInput)
    return {400, "invalid_json", "", one_line(error->what()), 0};
  return {500, "internal", "", "internal error", 0};
}

std::string error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
    case 405:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "api_error";
    case 503:
    case 529:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

int status_of(Api api, const ApiError& error) {
  return api == Api::kMessages && error.status == 503 ? 529 : error.status;
}

std::string error_body(Api api, const ApiError& error, const std::string& request_id) {
  const std::string type = error_type(error.status);
  if (api == Api::kMessages) {
    return text_of(Json{{"type", "error"},
                        {"error", {{"type", type}, {"message", error.message}}},
                        {"request_id", request_id}});
  }
  if (is_ollama(api)) return text_of(Json{{"error", error.message}});
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return text_of(Json{{"error",
                       {{"message", error.message},
                        {"type", type},
                        {"param", or_null(error.param)},
                        {"code", or_null(error.code)}}}});
}

}  // namespace dsv4
