#include "dsv4/chat/translated.h"

#include <charconv>

namespace dsv4 {
namespace {

// "messages[12].content" -> the path of the item that became message 12, with the rest.
std::string client_path(const std::string& path, const Translated& request) {
  constexpr std::string_view kMessages = "messages[";
  if (path.starts_with(kMessages)) {
    size_t index = 0;
    const char* end = path.data() + path.size();
    const auto read = std::from_chars(path.data() + kMessages.size(), end, index);
    if (read.ec == std::errc() && index < request.message_paths.size())
      return request.message_paths[index];
  }
  const size_t first = std::min(path.find_first_of(".["), path.size());
  const auto renamed = request.field_paths.find(path.substr(0, first));
  return renamed == request.field_paths.end() ? path : renamed->second + path.substr(first);
}

}  // namespace

void Translated::copy(const Field& field, const char* to) {
  if (!field.present()) return;
  chat.add(to, field.json());
  field_paths[to] = field.path();
}

void Translated::add_message(JsonValue message, std::string path) {
  for (auto& [key, value] : chat.members) {
    if (key == "messages") {
      value.items.push_back(std::move(message));
      message_paths.push_back(std::move(path));
      return;
    }
  }
  chat.add("messages", JsonValue::array());
  add_message(std::move(message), std::move(path));
}

JsonValue text_message(std::string role, std::string text) {
  JsonValue out = JsonValue::object();
  out.add("role", JsonValue::of_string(std::move(role)));
  out.add("content", JsonValue::of_string(std::move(text)));
  return out;
}

RequestError client_error(const RequestError& error, const Translated& request) {
  const std::string path = client_path(error.param(), request);
  std::string message = error.what();
  if (!error.param().empty() && message.starts_with(error.param()))
    message = path + message.substr(error.param().size());
  return RequestError(error.api_code(), path, message, error.status());
}

}  // namespace dsv4
