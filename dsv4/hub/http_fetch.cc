#include "dsv4/hub/http_fetch.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/hub/hub_file.h"

namespace dsv4 {
namespace {

constexpr int kMaxRedirects = 10;
constexpr int64_t kProgressBytes = int64_t{1} << 20;
constexpr double kLongestWait = 600;  // seconds that a server may make us wait

bool is_success(const HubAnswer& answer) {
  return answer.status == 200 || answer.status == 206;
}

bool may_work_later(const HubAnswer& answer) {
  switch (answer.status) {
    case 0:
      return !answer.permanent;
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    default:
      return false;
  }
}

// "503 of hub.example"; what the server itself says, if it does.
std::string reason(const HubAnswer& answer) {
  if (answer.status == 0) return quotable(answer.problem);
  const std::string said = answer.header("x-error-message");
  return fmt::format("the server answers {}{}", answer.status,
                     said.empty() ? "" : " (" + quotable(said) + ")");
}

const char* advice(int status) {
  switch (status) {
    case 401:
      return ": it does not exist, or needs a token: set HF_TOKEN";
    case 403:
      return ": the token has no access to it, or its terms were not accepted on its page";
    case 404:
      return ": check the name and the revision";
    default:
      return "";
  }
}

// The one whose signature expired is renewed by the hub.
bool may_have_expired(int status) {
  return status >= 400 && status < 500 && status != 408 && status != 429;
}

std::string unquoted(std::string text) {
  if (text.starts_with("W/")) text.erase(0, 2);
  std::erase(text, '"');
  return text;
}

}  // namespace

void StopSignal::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

bool StopSignal::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                            [this] { return stopped_.load(); });
}

HttpFetch::HttpFetch(HubPolicy policy, StopSignal& stop, Notice notice)
    : policy_(std::move(policy)),
      stop_(stop),
      notice_(std::move(notice)),
      exchange_(policy_.timeout_s, stop.flag()) {
}

// One try: the request, and those that its redirects lead to.
HubAnswer HttpFetch::follow(RemoteFile& file, const std::string& what, int64_t begin, int64_t end,
                            const HttpExchange::OnHead& on_head,
                            const HttpExchange::OnBody& on_body) {
  const std::string hub = origin_of(policy_.endpoint);
  std::string url = file.direct.empty() ? file.url : file.direct;
  for (int hops = 0; hops <= kMaxRedirects; ++hops) {
    const std::string origin = origin_of(url);
    HubAnswer answer = exchange_.run(
        {.url = url, .token = origin == hub ? policy_.token : "", .begin = begin, .end = end},
        on_head, on_body);
    const std::string etag = unquoted(answer.header("x-linked-etag"));
    if (origin == hub && !file.oid.empty() && !etag.empty() && etag != file.oid)
      fail(ErrorCode::kBadInput, "{}: the hub lists the hash {} and serves {}", what, file.oid,
           quotable(etag));
    if (!file.direct.empty() && url == file.direct && may_have_expired(answer.status)) {
      file.direct.clear();
      url = file.url;
      continue;
    }
    if (answer.redirect.empty()) {
      if (is_success(answer) && url != file.url) file.direct = url;
      return answer;
    }
    if (origin.starts_with("https:") && origin_of(answer.redirect).starts_with("http:"))
      fail(ErrorCode::kBadInput, "{}: {} redirects from https to http", what, host_of(url));
    url = answer.redirect;
  }
  fail(ErrorCode::kBadInput, "{}: more than {} redirects", what, kMaxRedirects);
}

void HttpFetch::give_up(const std::string& what, const HubAnswer& answer, int tries) const {
  const std::string many = tries > 1 ? fmt::format(" ({} tries)", tries) : "";
  fail(may_work_later(answer) ? ErrorCode::kIo : ErrorCode::kBadInput, "cannot fetch {}: {}{}{}",
       what, reason(answer), many, advice(answer.status));
}

// Twice as long as before, or as long as the server wants.
double HttpFetch::wait_before(int failed, const HubAnswer& answer, const std::string& what) const {
  const std::string header = answer.header("retry-after");
  double wanted = retry_after_s(header);
  if (wanted < 0 && !header.empty()) {
    const time_t until = CurlLibrary::get().getdate(header.c_str(), nullptr);
    if (until > 0) wanted = std::max(0., std::difftime(until, std::time(nullptr)));
  }
  if (wanted > kLongestWait)
    fail(ErrorCode::kIo, "cannot fetch {}: {}, and wants {:.0f} seconds of pause", what,
         reason(answer), wanted);
  return std::max(wanted, policy_.first_wait_s * (1 << std::min(failed - 1, 6)));
}

// `at` grows with what attempt() receives.
HubAnswer HttpFetch::repeat(const std::string& what, const std::function<HubAnswer()>& attempt,
                            const int64_t& at) {
  int failed = 0;
  for (;;) {
    const int64_t before = at;
    HubAnswer answer = attempt();
    if (stop_.flag()) throw FetchStopped();
    if (is_success(answer)) return answer;
    if (at - before >= kProgressBytes) failed = 0;
    ++failed;
    if (!may_work_later(answer) || failed >= policy_.tries) give_up(what, answer, failed);
    const double seconds = wait_before(failed, answer, what);
    notice_(fmt::format("{}: {}; try {} of {} in {:.0f} s", what, reason(answer), failed + 1,
                        policy_.tries, seconds));
    if (!stop_.wait(seconds)) throw FetchStopped();
  }
}

HttpFetch::Text HttpFetch::read(const std::string& url, const std::string& what, size_t max_bytes) {
  Text text;
  RemoteFile file{.url = url};
  const auto on_head = [&](const HubAnswer&) { text.body.clear(); };
  const auto on_body = [&](std::span<const std::byte> bytes) {
    if (bytes.size() > max_bytes - text.body.size())
      fail(ErrorCode::kBadInput, "cannot fetch {}: more than {} bytes", what, max_bytes);
    text.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const int64_t none = 0;
  const HubAnswer answer = repeat(
      what, [&] { return follow(file, what, 0, -1, on_head, on_body); }, none);
  text.link = answer.header("link");
  return text;
}

void HttpFetch::read_range(RemoteFile& file, const std::string& what, int64_t start, int64_t begin,
                           int64_t end, const Sink& sink) {
  int64_t at = begin;
  const bool may_restart = start == 0 && end == file.size;
  const auto wrong_size = [&](const std::string& size) {
    fail(ErrorCode::kBadInput, "{}: the hub lists {} bytes, and its server has {}", what, file.size,
         quotable(size));
  };
  const auto on_head = [&](const HubAnswer& answer) {
    if (answer.status == 206) {
      const std::string header = answer.header("content-range");
      ContentRange range;
      if (!parse_content_range(header, &range))
        fail(ErrorCode::kBadInput, "{}: the server sends bytes and does not say which", what);
      if (range.size != file.size) wrong_size(fmt::format("{}", range.size));
      if (range.first != at || range.last != end - 1)
        fail(ErrorCode::kBadInput, "{}: bytes {}-{} were requested, and the server sends {}-{}",
             what, at, end - 1, range.first, range.last);
      return;
    }
    const std::string length = answer.header("content-length");
    if (!may_restart)
      fail(ErrorCode::kBadInput, "{}: the server sends the whole file where a range was requested",
           what);
    if (!length.empty() && length != fmt::format("{}", file.size)) wrong_size(length);
    at = 0;
  };
  const auto on_body = [&](std::span<const std::byte> bytes) {
    if (static_cast<int64_t>(bytes.size()) > end - at) wrong_size("more");
    sink(at, bytes);
    at += static_cast<int64_t>(bytes.size());
  };
  repeat(
      what,
      [&] {
        const bool whole = at == 0 && end == file.size;
        HubAnswer answer = follow(file, what, at, whole ? -1 : end, on_head, on_body);
        if (is_success(answer) && at != end) {
          answer.status = 0;
          answer.problem = "the connection ended early";
        } else if (answer.status == 0 && at == end) {
          answer.status = 200;  // an error after the last byte
        }
        return answer;
      },
      at);
}

}  // namespace dsv4
