// A client over a raw socket on loopback: what it sends is what the test wrote, byte by byte.

#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::test {

#ifdef DSV4_SANITIZED
inline constexpr int kTimeoutMs = 600'000;  // of an answer sent as a whole: ten times as long
#else
inline constexpr int kTimeoutMs = 60'000;
#endif

class Socket {
 public:
  // `receive_buffer`: bytes that the kernel keeps for a client that does not read; 0: its default.
  explicit Socket(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
  }
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool is_open() const { return fd_ >= 0; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // False where the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t size = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(size));
    }
    return true;
  }
  // Appends what arrives; false at the end of the stream or after `timeout_ms` without a byte.
  bool receive(std::string& out, int timeout_ms = kTimeoutMs) {
    pollfd poll_fd{fd_, POLLIN, 0};
    if (poll(&poll_fd, 1, timeout_ms) != 1) return false;
    char buffer[16384];
    const ssize_t size = recv(fd_, buffer, sizeof buffer, 0);
    if (size <= 0) return false;
    out.append(buffer, static_cast<size_t>(size));
    return true;
  }
  // Everything until the server closes.
  std::string receive_all(int timeout_ms = kTimeoutMs) {
    std::string out;
    while (receive(out, timeout_ms)) {
    }
    return out;
  }

 private:
  int fd_;
};

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;

  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

// The first answer in `bytes`; `used` is its size where it is complete.
inline Answer parse_answer(std::string_view bytes, size_t* used = nullptr) {
  Answer answer;
  const size_t head_end = bytes.find("\r\n\r\n");
  if (head_end == bytes.npos || !bytes.starts_with("HTTP/1.1 ")) return answer;
  answer.status = std::stoi(std::string(bytes.substr(9, 3)));
  std::string_view head = bytes.substr(0, head_end + 2);
  head.remove_prefix(head.find("\r\n") + 2);
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    std::string name(line.substr(0, line.find(": ")));
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    answer.headers[name] = line.substr(line.find(": ") + 2);
    head.remove_prefix(line.size() + 2);
  }
  size_t at = head_end + 4;
  if (answer.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      const size_t line_end = bytes.find("\r\n", at);
      if (line_end == bytes.npos) return answer;
      const size_t size = std::stoul(std::string(bytes.substr(at, line_end - at)), nullptr, 16);
      if (line_end + 2 + size + 2 > bytes.size()) return answer;
      answer.body += bytes.substr(line_end + 2, size);
      at = line_end + 2 + size + 2;
      if (size == 0) break;
    }
  } else {
    const size_t size = answer.headers.contains("content-length")
                            ? std::stoul(answer.headers["content-length"])
                            : 0;
    if (at + size > bytes.size()) return answer;
    answer.body = bytes.substr(at, size);
    at += size;
  }
  answer.complete = true;
  if (used != nullptr) *used = at;
  return answer;
}

inline std::string request_text(std::string_view method, std::string_view path,
                                std::string_view body, std::string_view headers = "") {
  std::string out = std::string(method) + " " + std::string(path) +
                    " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers);
  if (!body.empty()) {
    out +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return out + "\r\n" + std::string(body);
}

// One request on a connection of its own.
inline Answer ask(uint16_t port, std::string_view method, std::string_view path,
                  std::string_view body = "", std::string_view headers = "") {
  Socket socket(port);
  socket.send(request_text(method, path, body, headers));
  std::string bytes;
  const auto complete = [&] {
    if (method == "HEAD") return bytes.ends_with("\r\n\r\n");  // has the length of a body, but none
    return parse_answer(bytes).complete;
  };
  while (!complete() && socket.receive(bytes)) {
  }
  return parse_answer(bytes);
}

// A metric by its name and labels; -1 where there is none.
inline double metric(uint16_t port, const std::string& name) {
  const std::string text = ask(port, "GET", "/metrics").body;
  const size_t at = text.find("\n" + name + " ");
  return at == text.npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

struct SseEvent {
  std::string event, data;
  nlohmann::json json() const { return nlohmann::json::parse(data, nullptr, false); }
};

// Comments are left out.
inline std::vector<SseEvent> events_of(std::string_view body) {
  std::vector<SseEvent> events;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    EXPECT_NE(end, body.npos) << "an event without its blank line";
    if (end == body.npos) break;
    std::string_view block = body.substr(0, end);
    body.remove_prefix(end + 2);
    SseEvent event;
    while (!block.empty()) {
      const std::string_view line = block.substr(0, block.find('\n'));
      block.remove_prefix(std::min(line.size() + 1, block.size()));
      if (line.starts_with("event: ")) event.event = line.substr(7);
      if (line.starts_with("data: ")) event.data = line.substr(6);
    }
    if (!event.data.empty()) events.push_back(std::move(event));
  }
  return events;
}

}  // namespace dsv4::test
