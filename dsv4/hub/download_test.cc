// Random files from a server in this process that ends connections at random places: with any
// number of threads every blob has its bytes. For ThreadSanitizer; tests/hub/ has the program.

#include "dsv4/hub/download.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <thread>

#include "dsv4/base/rng.h"
#include "dsv4/hub/blob_hash.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

// One request per connection, "GET /NAME", with or without "Range: bytes=FIRST-LAST".
class Server {
 public:
  Server(std::map<std::string, std::string> files, int cuts)
      : files_(std::move(files)), cuts_(cuts) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    accepting_ = std::jthread([this] { accept_all(); });
  }
  ~Server() {
    shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    close(listener_);
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }

 private:
  void accept_all() {
    std::vector<std::jthread> threads;
    for (int client; (client = accept(listener_, nullptr, nullptr)) >= 0;)
      threads.emplace_back([this, client] { serve(client); });
  }

  void serve(int client) {
    std::string head;
    char bytes[4096];
    while (head.find("\r\n\r\n") == head.npos) {
      const ssize_t got = recv(client, bytes, sizeof bytes, 0);
      if (got <= 0) {  // the client stopped before it had asked for anything
        close(client);
        return;
      }
      head.append(bytes, static_cast<size_t>(got));
    }
    const size_t begin = head.find('/') + 1;
    const std::string& file = files_.at(head.substr(begin, head.find(' ', begin) - begin));
    size_t first = 0, last = file.size() - 1;
    const size_t range = head.find("Range: bytes=");
    if (range != head.npos)
      std::sscanf(head.c_str() + range, "Range: bytes=%zu-%zu", &first, &last);
    std::string answer = range == head.npos ? "HTTP/1.1 200 OK\r\n" : "HTTP/1.1 206 Partial\r\n";
    if (range != head.npos)
      answer += fmt::format("Content-Range: bytes {}-{}/{}\r\n", first, last, file.size());
    answer += fmt::format("Content-Length: {}\r\nConnection: close\r\n\r\n", last + 1 - first);
    size_t count = last + 1 - first;
    if (cuts_-- > 0) count = count * static_cast<size_t>(cuts_ % 7) / 7;
    answer += file.substr(first, count);
    send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    close(client);
  }

  std::map<std::string, std::string> files_;
  std::atomic<int> cuts_;
  int listener_ = -1, port_ = 0;
  std::jthread accepting_;
};

std::string random_text(size_t size, uint64_t seed) {
  Rng rng(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(rng.bits() & 0xffu);
  return text;
}

struct Model {
  std::map<std::string, std::string> bytes;
  std::vector<HubFile> files;

  void add(const std::string& path, std::string text, bool lfs) {
    HubFile file{.path = path, .size = static_cast<int64_t>(text.size()), .lfs = lfs};
    BlobHash hash(file);
    hash.update(std::as_bytes(std::span(text)));
    file.oid = hash.digits();
    files.push_back(file);
    bytes[path] = std::move(text);
  }
};

TEST(Download, RandomFilesWithCuts) {
  const uint64_t seed = static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
  Model model;
  model.add("empty", "", false);
  model.add("large", random_text(9 << 20, seed), true);
  for (size_t i = 0; i < 24; ++i)
    model.add(fmt::format("small{}", i), random_text(1 + i * i, seed + i), i % 2 == 0);
  for (const int connections : {1, 16}) {
    const test::TempFolder folder;
    const HubCache cache(folder.path(), {.repo = "a/b"});
    cache.make_folders();
    const Server server(model.bytes, 5);
    int64_t done = 0;
    fetch_blobs({.policy = {.endpoint = server.url(), .tries = 6, .first_wait_s = 0.01},
                 .url = server.url() + "/",
                 .connections = connections,
                 .notice = [](const std::string&) {},
                 .progress = [&](int64_t now, int64_t) { done = now; }},
                cache, model.files);
    int64_t total = 0;
    for (const HubFile& file : model.files) {
      EXPECT_TRUE(cache.has(file)) << file.path;
      std::ifstream in(cache.blob(file), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
      EXPECT_TRUE(text == model.bytes.at(file.path)) << file.path;
      total += file.size;
    }
    EXPECT_EQ(done, total);
    const auto blobs = std::filesystem::directory_iterator(folder.path() + "/models--a--b/blobs");
    EXPECT_EQ(std::distance(begin(blobs), end(blobs)), 26) << "no part is left";
  }
}

TEST(Download, OneWrongHashEndsAllThreads) {
  Model model;
  for (size_t i = 0; i < 20; ++i) model.add(fmt::format("f{}", i), random_text(5000, i), true);
  const Server server(model.bytes, 0);
  HubFile& bad = model.files[10];
  bad.oid = std::string(64, 'a');
  const test::TempFolder folder;
  const HubCache cache(folder.path(), {.repo = "a/b"});
  cache.make_folders();
  const std::string error = test::error_of(ErrorCode::kBadInput, [&] {
    fetch_blobs({.policy = {.endpoint = server.url()},
                 .url = server.url() + "/",
                 .notice = [](const std::string&) {},
                 .progress = [](int64_t, int64_t) {}},
                cache, model.files);
  });
  EXPECT_TRUE(test::says(error, "f10: the SHA-256 of what was received is "));
  EXPECT_FALSE(cache.has(bad));
}

}  // namespace
}  // namespace dsv4
