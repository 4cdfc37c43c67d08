// libzmq, loaded when it is first wanted: a program that publishes nothing runs without it.

#pragma once

#include <zmq.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

// The functions of the library that are used here.
struct ZmqLibrary {
  decltype(&::zmq_ctx_new) ctx_new;
  decltype(&::zmq_ctx_term) ctx_term;
  decltype(&::zmq_socket) socket;
  decltype(&::zmq_close) close;
  decltype(&::zmq_setsockopt) setsockopt;
  decltype(&::zmq_getsockopt) getsockopt;
  decltype(&::zmq_bind) bind;
  decltype(&::zmq_send) send;
  decltype(&::zmq_msg_init) msg_init;
  decltype(&::zmq_msg_recv) msg_recv;
  decltype(&::zmq_msg_data) msg_data;
  decltype(&::zmq_msg_size) msg_size;
  decltype(&::zmq_msg_more) msg_more;
  decltype(&::zmq_msg_close) msg_close;
  decltype(&::zmq_poll) poll;
  decltype(&::zmq_errno) error;
  decltype(&::zmq_strerror) strerror;

  // Throws kUnsupported, with the package to install, where the machine has no libzmq.so.5.
  static const ZmqLibrary& load();
};

class ZmqContext {
 public:
  ZmqContext() : library_(ZmqLibrary::load()), context_(library_.ctx_new()) {}
  ~ZmqContext() { library_.ctx_term(context_); }  // after its sockets
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  const ZmqLibrary& library() const { return library_; }
  void* get() const { return context_; }

 private:
  const ZmqLibrary& library_;
  void* context_;
};

// A socket that is bound; closing drops what was not sent.
class ZmqSocket {
 public:
  // type: ZMQ_PUB or ZMQ_ROUTER. Throws kIo, "OPTION ENDPOINT: ...".
  ZmqSocket(const ZmqContext& context, int type, const std::string& endpoint, const char* option);
  ~ZmqSocket();
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  void* get() const { return socket_; }
  std::string endpoint() const;  // with the port that the system chose
  // False where it cannot leave at once.
  bool send(const std::vector<std::string_view>& frames);
  // A whole message, or nothing where none is there.
  std::vector<std::string> receive();

 private:
  const ZmqLibrary& library_;
  void* socket_;
};

}  // namespace dsv4::apps
