#include "dsv4/hub/http_exchange.h"

#include <pthread.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <ctime>
#include <memory>

#include "dsv4/base/ascii.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxText = 4096;    // bytes kept of an answer that is not the file
constexpr size_t kMaxHeaders = 200;  // of one answer; libcurl limits their bytes
constexpr long kSlowest = 1024;      // bytes per second
constexpr long kConnectSeconds = 30;
constexpr long kBufferBytes = 512 << 10;

// OpenSSL writes to sockets without MSG_NOSIGNAL. A connection that the server closed must not end
// the program.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    constexpr timespec kNoWait{};
    while (sigtimedwait(&pipe_, nullptr, &kNoWait) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
};

bool is_permanent(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return true;
    default:
      return false;
  }
}

struct Authority {
  std::string scheme, host, port;
};

Authority authority_of(const std::string& url) {
  const size_t mark = url.find("://");
  Authority parts{.scheme = lower_case(url.substr(0, std::min(mark, url.size())))};
  if (mark == url.npos || (parts.scheme != "http" && parts.scheme != "https"))
    fail(ErrorCode::kBadInput, "'{}' is not an address of http or https", quotable(url));
  const size_t begin = mark + 3, end = std::min(url.find_first_of("/?#", begin), url.size());
  const std::string authority = lower_case(url.substr(begin, end - begin));
  const size_t bracket = authority.find(']');
  const size_t colon = authority.find(':', bracket == authority.npos ? 0 : bracket);
  parts.host = authority.substr(0, colon);
  parts.port = colon == authority.npos ? (parts.scheme == "https" ? "443" : "80")
                                       : authority.substr(colon + 1);
  const bool plain =
      authority.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-._:[]") == authority.npos;
  const bool digits = !parts.port.empty() && parts.port.size() <= 5 &&
                      parts.port.find_first_not_of("0123456789") == parts.port.npos;
  if (parts.host.empty() || !plain || !digits)
    fail(ErrorCode::kBadInput, "'{}': want SCHEME://HOST[:PORT]", quotable(url.substr(0, end)));
  return parts;
}

}  // namespace

std::string origin_of(const std::string& url) {
  const Authority parts = authority_of(url);
  return parts.scheme + "://" + parts.host + ":" + parts.port;
}

std::string host_of(const std::string& url) {
  return authority_of(url).host;
}

std::string HubAnswer::header(const std::string& name) const {
  const auto at = headers.find(name);
  return at == headers.end() ? "" : at->second;
}

struct HttpExchange::Receiver {
  const HttpExchange& exchange;
  const OnHead& on_head;
  const OnBody& on_body;
  HubAnswer answer;
  bool begun = false;
  std::exception_ptr thrown;
};

HttpExchange::HttpExchange(int timeout_s, const std::atomic<bool>& stop)
    : curl_(CurlLibrary::get()), handle_(curl_.easy_init()), timeout_s_(timeout_s), stop_(stop) {
  if (handle_ == nullptr) fail(ErrorCode::kResource, "libcurl has no memory for a connection");
}

HttpExchange::~HttpExchange() {
  curl_.easy_cleanup(handle_);
}

size_t HttpExchange::take_header(char* data, size_t, size_t size, void* receiver) {
  HubAnswer& answer = static_cast<Receiver*>(receiver)->answer;
  const std::string_view line(data, size);
  if (line.starts_with("HTTP/")) answer.headers.clear();  // the answer of a proxy came before
  const size_t colon = line.find(':');
  if (colon == line.npos || answer.headers.size() >= kMaxHeaders) return size;
  std::string_view value = line.substr(colon + 1);
  value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
  value = value.substr(0, value.find_last_not_of(" \t\r\n") + 1);
  answer.headers[lower_case(line.substr(0, colon))] = value;
  return size;
}

size_t HttpExchange::take_body(char* data, size_t, size_t size, void* to) {
  Receiver& receiver = *static_cast<Receiver*>(to);
  const HttpExchange& exchange = receiver.exchange;
  try {
    if (!receiver.begun) {
      long status = 0;
      exchange.curl_.easy_getinfo(exchange.handle_, CURLINFO_RESPONSE_CODE, &status);
      receiver.answer.status = static_cast<int>(status);
      receiver.begun = true;
      if (status == 200 || status == 206) receiver.on_head(receiver.answer);
    }
    if (receiver.answer.status == 200 || receiver.answer.status == 206) {
      receiver.on_body(std::as_bytes(std::span(data, size)));
    } else {
      std::string& text = receiver.answer.text;
      text.append(data, std::min(size, kMaxText - std::min(kMaxText, text.size())));
    }
  } catch (...) {
    receiver.thrown = std::current_exception();
    return 0;  // which ends the transfer
  }
  return exchange.stop_ ? 0 : size;
}

int HttpExchange::check_stop(void* receiver, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Receiver*>(receiver)->exchange.stop_ ? 1 : 0;
}

void HttpExchange::set_options(const HubRequest& request, Receiver* receiver, char* problem) const {
  const auto set = [this](CURLoption option, auto value) {
    if (curl_.easy_setopt(handle_, option, value) != CURLE_OK)
      fail(ErrorCode::kUnsupported, "libcurl.so.4 refuses option {}", static_cast<int>(option));
  };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_USERAGENT, "dsv4/" DSV4_VERSION);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, std::min<long>(timeout_s_, kConnectSeconds));
  set(CURLOPT_LOW_SPEED_LIMIT, kSlowest);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(timeout_s_));
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_HEADEROPT, static_cast<long>(CURLHEADER_SEPARATE));  // no token to a proxy
  set(CURLOPT_ERRORBUFFER, problem);
  set(CURLOPT_HEADERFUNCTION, &HttpExchange::take_header);
  set(CURLOPT_HEADERDATA, receiver);
  set(CURLOPT_WRITEFUNCTION, &HttpExchange::take_body);
  set(CURLOPT_WRITEDATA, receiver);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &HttpExchange::check_stop);
  set(CURLOPT_XFERINFODATA, receiver);
  if (const std::string file = env("SSL_CERT_FILE"); !file.empty())
    set(CURLOPT_CAINFO, file.c_str());
}

HubAnswer HttpExchange::run(const HubRequest& request, const OnHead& on_head,
                            const OnBody& on_body) {
  Receiver receiver{.exchange = *this, .on_head = on_head, .on_body = on_body};
  char problem[CURL_ERROR_SIZE] = {};
  set_options(request, &receiver, problem);
  std::unique_ptr<curl_slist, decltype(curl_.slist_free_all)> headers(nullptr,
                                                                      curl_.slist_free_all);
  const auto add_header = [&](const std::string& line) {
    if (curl_slist* longer = curl_.slist_append(headers.get(), line.c_str()))
      static_cast<void>(headers.release()), headers.reset(longer);
  };
  if (!request.token.empty()) add_header("Authorization: Bearer " + request.token);
  if (request.end >= 0)
    add_header(fmt::format("Range: bytes={}-{}", request.begin, request.end - 1));
  curl_.easy_setopt(handle_, CURLOPT_HTTPHEADER, headers.get());
  CURLcode code = CURLE_OK;
  {
    const NoSigpipe guard;
    code = curl_.easy_perform(handle_);
  }
  HubAnswer& answer = receiver.answer;
  long status = 0;
  char* redirect = nullptr;
  curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
  curl_.easy_getinfo(handle_, CURLINFO_REDIRECT_URL, &redirect);
  if (redirect != nullptr) answer.redirect = redirect;
  curl_.easy_reset(handle_);  // which points to what ends here
  if (receiver.thrown) std::rethrow_exception(receiver.thrown);
  answer.status = code == CURLE_OK ? static_cast<int>(status) : 0;
  if (code != CURLE_OK) {
    answer.permanent = is_permanent(code);
    answer.problem = problem[0] != '\0' ? problem : curl_.easy_strerror(code);
  } else if (!receiver.begun && (status == 200 || status == 206)) {
    on_head(answer);  // there is no body
  }
  return answer;
}

}  // namespace dsv4
