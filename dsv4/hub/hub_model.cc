#include "dsv4/hub/hub_model.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/thread.h"
#include "dsv4/hub/blob_hash.h"
#include "dsv4/hub/download.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxAnswer = size_t{64} << 20;     // bytes of one answer of the API
constexpr size_t kMaxFiles = 65536;                 // of a model
constexpr int kMaxPages = 1000;                     // of the list of files
constexpr int64_t kFirstRead = int64_t{256} << 10;  // most headers fit
constexpr size_t kConnections = 8;

std::string escaped_word(const std::string& text) {
  std::string escaped = escaped_path(text);
  for (size_t slash; (slash = escaped.find('/')) != escaped.npos;) escaped.replace(slash, 1, "%2F");
  return escaped;
}

}  // namespace

HubModel::HubModel(const HubName& name, const HubPolicy& policy, const HttpFetch::Notice& notice)
    : repo_(name.repo), commit_(name.revision), policy_(policy), notice_(notice) {
  if (!is_commit(commit_)) {
    const std::string url = fmt::format("{}/api/models/{}/revision/{}", policy_.endpoint, repo_,
                                        escaped_word(name.revision));
    commit_ = parse_hub_commit(make_fetch().read(url, name.text(), kMaxAnswer).body, name.text());
  }
  files_ = list_files();
}

HttpFetch HubModel::make_fetch() {
  return HttpFetch(policy_, stop_, [this](const std::string& line) {
    const std::lock_guard lock(notice_mutex_);
    notice_(line);
  });
}

std::vector<HubFile> HubModel::list_files() {
  HttpFetch fetch = make_fetch();
  const std::string what = "the list of files of " + repo_;
  std::string url =
      fmt::format("{}/api/models/{}/tree/{}?recursive=true", policy_.endpoint, repo_, commit_);
  std::vector<HubFile> files;
  for (int page = 0; !url.empty(); ++page) {
    const HttpFetch::Text text = fetch.read(url, what, kMaxAnswer);
    std::vector<HubFile> more = parse_hub_tree(text.body, what);
    std::ranges::move(more, std::back_inserter(files));
    if (files.size() > kMaxFiles || page >= kMaxPages)
      fail(ErrorCode::kBadInput, "{} is longer than {} files", what, kMaxFiles);
    url = next_page(text.link);
  }
  check_hub_paths(files, what);
  return files;
}

const HubFile* HubModel::find(std::string_view path) const {
  const auto at = std::ranges::find(files_, path, &HubFile::path);
  return at == files_.end() ? nullptr : &*at;
}

std::string HubModel::file_url() const {
  return fmt::format("{}/{}/resolve/{}/", policy_.endpoint, repo_, commit_);
}

std::string HubModel::read_text(const HubFile& file, size_t max_bytes) {
  if (file.size > static_cast<int64_t>(max_bytes))
    fail(ErrorCode::kBadInput, "{} of {} has {} bytes, more than {}", quotable(file.path), repo_,
         file.size, max_bytes);
  std::string text =
      make_fetch().read(file_url() + escaped_path(file.path), file.path, max_bytes).body;
  BlobHash hash(file);
  hash.update(std::as_bytes(std::span(text)));
  if (hash.digits() != file.oid)
    fail(ErrorCode::kBadInput, "{}: what was received is not what the hub lists",
         quotable(file.path));
  return text;
}

std::string HubModel::read_header(HttpFetch& fetch, const HubFile& file) const {
  RemoteFile remote{.url = file_url() + escaped_path(file.path),
                    .oid = file.lfs ? file.oid : "",
                    .size = file.size};
  std::string begin;
  const auto read_until = [&](int64_t end) {
    const auto have = static_cast<int64_t>(begin.size());
    if (have >= end) return;
    fetch.read_range(remote, file.path, 0, have, end, [&](int64_t offset, auto bytes) {
      begin.resize(static_cast<size_t>(offset));
      begin.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
  };
  read_until(std::min(kFirstRead, file.size));
  read_until(std::min(safetensors_header_bytes(begin), file.size));
  return begin;
}

std::vector<std::string> HubModel::read_headers(const std::vector<const HubFile*>& files) {
  std::vector<std::string> headers(files.size());
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      HttpFetch fetch = make_fetch();
      for (size_t i; (i = next++) < files.size();) headers[i] = read_header(fetch, *files[i]);
    } catch (const FetchStopped&) {
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
      stop_.stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < std::min(kConnections, files.size()); ++i)
      threads.push_back(start_thread("a connection", work));
  }
  if (failure) std::rethrow_exception(failure);
  return headers;
}

}  // namespace dsv4
