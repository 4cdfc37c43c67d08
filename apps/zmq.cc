#include "apps/zmq.h"

#include <dlfcn.h>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

constexpr int kMostWaiting = 100'000;  // messages for a subscriber that is slow
constexpr int64_t kMostBytes = 1024;   // of what a client sends

template <class Function>
void find(void* library, const char* name, Function& function) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr)
    fail(ErrorCode::kUnsupported, "libzmq.so.5 has no {}: install libzmq5 of Debian 12", name);
  function = reinterpret_cast<Function>(symbol);
}

// The library takes a port modulo 65536.
bool has_valid_port(const std::string& endpoint) {
  if (!endpoint.starts_with("tcp://")) return true;  // which the library judges
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
  return port == "*" || (digits && std::stoi(port) <= 65535);
}

ZmqLibrary load_library() {
  void* const library = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    fail(ErrorCode::kUnsupported, "cannot load libzmq ({}): install it (apt install libzmq5)",
         error == nullptr ? "?" : error);
  }
  ZmqLibrary out{};
  find(library, "zmq_ctx_new", out.ctx_new);
  find(library, "zmq_ctx_term", out.ctx_term);
  find(library, "zmq_socket", out.socket);
  find(library, "zmq_close", out.close);
  find(library, "zmq_setsockopt", out.setsockopt);
  find(library, "zmq_getsockopt", out.getsockopt);
  find(library, "zmq_bind", out.bind);
  find(library, "zmq_send", out.send);
  find(library, "zmq_msg_init", out.msg_init);
  find(library, "zmq_msg_recv", out.msg_recv);
  find(library, "zmq_msg_data", out.msg_data);
  find(library, "zmq_msg_size", out.msg_size);
  find(library, "zmq_msg_more", out.msg_more);
  find(library, "zmq_msg_close", out.msg_close);
  find(library, "zmq_poll", out.poll);
  find(library, "zmq_errno", out.error);
  find(library, "zmq_strerror", out.strerror);
  return out;
}

}  // namespace

const ZmqLibrary& ZmqLibrary::load() {
  static const ZmqLibrary library = load_library();
  return library;
}

ZmqSocket::ZmqSocket(const ZmqContext& context, int type, const std::string& endpoint,
                     const char* option)
    : library_(context.library()), socket_(library_.socket(context.get(), type)) {
  const auto set = [&](int name, const auto& value) {
    return socket_ != nullptr && library_.setsockopt(socket_, name, &value, sizeof value) == 0;
  };
  const bool valid = has_valid_port(endpoint);
  const bool ready = valid && set(ZMQ_LINGER, 0) && set(ZMQ_SNDHWM, kMostWaiting) &&
                     set(ZMQ_MAXMSGSIZE, kMostBytes) && set(ZMQ_IPV6, 1) &&
                     library_.bind(socket_, endpoint.c_str()) == 0;
  if (ready) return;
  const std::string why = valid ? library_.strerror(library_.error()) : "no such port";
  if (socket_ != nullptr) library_.close(socket_);
  fail(ErrorCode::kIo, "{} {}: {} (want an endpoint to listen at, as tcp://127.0.0.1:5557)", option,
       quotable(endpoint), why);
}

ZmqSocket::~ZmqSocket() {
  library_.close(socket_);
}

std::string ZmqSocket::endpoint() const {
  char text[512] = {};
  size_t size = sizeof text;
  if (library_.getsockopt(socket_, ZMQ_LAST_ENDPOINT, text, &size) != 0) return "";
  return text;
}

bool ZmqSocket::send(const std::vector<std::string_view>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (library_.send(socket_, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more) < 0)
      return false;
  }
  return true;
}

std::vector<std::string> ZmqSocket::receive() {
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq_msg_t message;
    library_.msg_init(&message);
    if (library_.msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
      library_.msg_close(&message);
      return {};
    }
    frames.emplace_back(static_cast<const char*>(library_.msg_data(&message)),
                        library_.msg_size(&message));
    more = library_.msg_more(&message) != 0;
    library_.msg_close(&message);
  }
  return frames;
}

}  // namespace dsv4::apps
