#include "dsv4/hub/download.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <thread>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/base/size_text.h"
#include "dsv4/base/thread.h"
#include "dsv4/hub/blob_hash.h"
#include "dsv4/hub/file_lock.h"
#include "dsv4/hub/part_file.h"

namespace dsv4 {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(100);  // of locks, and of what is reported
constexpr int64_t kHashBytes = int64_t{1} << 20;

// A file that this process fetches: its lock is held. Other than `part`, all of it belongs to the
// mutex of Download.
struct Active {
  Active(const HubFile& of, std::unique_ptr<FileLock> held, const std::string& path)
      : file(of), lock(std::move(held)), part(path, of.size), hash(of) {
    for (int64_t i = 0; i < part.num_pieces(); ++i)
      state.push_back(part.complete(i) ? State::kComplete : State::kOpen);
    continued = part.total_received() > 0;
  }

  enum class State { kOpen, kTaken, kComplete };

  const HubFile& file;
  std::unique_ptr<FileLock> lock;
  PartFile part;
  std::vector<State> state;  // of each piece
  RemoteFile remote;
  BlobHash hash;
  int64_t hashed = 0;      // pieces that `hash` has
  bool hashing = false;    // by one of the threads
  bool continued = false;  // an earlier run began it
};

class Download {
 public:
  Download(const HubDownload& options, const HubCache& cache, const std::vector<HubFile>& files)
      : options_(options), cache_(cache) {
    std::set<std::string_view> blobs;
    for (const HubFile& file : files) {
      if (!blobs.insert(file.oid).second) continue;  // two paths with the same bytes
      total_ += file.size;
      waiting_.push_back(&file);
    }
  }

  void run();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Job {
    std::shared_ptr<Active> active;
    int64_t piece = -1;  // -1: hash what is there
  };

  void work();
  Job next_job(Lock& lock);
  bool take_piece(Job* job);
  std::shared_ptr<Active> open_file();
  void fetch_piece(Lock& lock, HttpFetch& fetch, const Job& job);
  void hash_pieces(Lock& lock, const std::shared_ptr<Active>& active);
  void finish(Lock& lock, const std::shared_ptr<Active>& active);
  void report(Lock& lock);
  void add_notice(const std::string& line);

  const HubDownload& options_;
  const HubCache& cache_;
  StopSignal stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // All below belongs to the mutex.
  std::deque<const HubFile*> waiting_;  // in order; those that another process has locked last
  std::set<const HubFile*> announced_;  // for which we said that we wait
  std::vector<std::shared_ptr<Active>> active_;
  std::deque<std::string> notices_;
  std::exception_ptr failure_;
  int working_ = 0;  // threads
  int64_t total_ = 0;
  std::atomic<int64_t> done_ = 0;  // bytes
};

void Download::add_notice(const std::string& line) {
  const std::lock_guard lock(mutex_);
  notices_.push_back(line);
}

// A piece of a file that is open, in the order of the files.
bool Download::take_piece(Job* job) {
  for (const std::shared_ptr<Active>& active : active_) {
    const auto at = std::ranges::find(active->state, Active::State::kOpen);
    if (at == active->state.end()) continue;
    *at = Active::State::kTaken;
    *job = {active, at - active->state.begin()};
    return true;
  }
  return false;
}

// The next file that is not there yet and that no other process fetches; null: none.
std::shared_ptr<Active> Download::open_file() {
  for (size_t left = waiting_.size(); left > 0; --left) {
    const HubFile& file = *waiting_.front();
    waiting_.pop_front();
    if (cache_.has(file) && PartFile::allocated(cache_.part(file)) == 0) {
      done_ += file.size;
      continue;
    }
    std::unique_ptr<FileLock> lock = FileLock::try_lock(cache_.lock(file));
    if (lock == nullptr) {
      if (announced_.insert(&file).second)
        notices_.push_back(fmt::format("another program is fetching {} ({}): waiting for it",
                                       quotable(file.path), cache_.lock(file)));
      waiting_.push_back(&file);
      continue;
    }
    if (cache_.has(file)) {  // another program was faster
      PartFile::remove(cache_.part(file));
      done_ += file.size;
      continue;
    }
    auto active = std::make_shared<Active>(file, std::move(lock), cache_.part(file));
    active->remote = {.url = options_.url + escaped_path(file.path),
                      .oid = file.lfs ? file.oid : "",
                      .size = file.size};
    done_ += active->part.total_received();
    active_.push_back(active);
    return active;
  }
  return nullptr;
}

// Waits for something to do; nothing: all files are in place, or the download was stopped.
Download::Job Download::next_job(Lock& lock) {
  for (;;) {
    Job job;
    if (stop_.flag() || (waiting_.empty() && active_.empty())) return job;
    if (take_piece(&job)) return job;
    if (std::shared_ptr<Active> active = open_file()) return {active, -1};
    changed_.wait_for(lock, kPoll);
  }
}

void Download::fetch_piece(Lock& lock, HttpFetch& fetch, const Job& job) {
  Active& active = *job.active;
  PartFile& part = active.part;
  RemoteFile remote = active.remote;
  lock.unlock();
  const int64_t begin = part.begin(job.piece), at = begin + part.received(job.piece);
  int64_t received = at;
  fetch.read_range(remote, active.file.path, begin, at, part.end(job.piece),
                   [&](int64_t offset, std::span<const std::byte> bytes) {
                     part.write(job.piece, offset, bytes);
                     const int64_t end = offset + static_cast<int64_t>(bytes.size());
                     done_ += end - received;
                     received = end;
                   });
  lock.lock();
  active.remote = remote;
  active.state[static_cast<size_t>(job.piece)] = Active::State::kComplete;
}

// Hashes the pieces that follow those already hashed, unless another thread does. The thread that
// has hashed the last one finishes the file.
void Download::hash_pieces(Lock& lock, const std::shared_ptr<Active>& active) {
  if (active->hashing) return;
  active->hashing = true;
  std::vector<std::byte> buffer(static_cast<size_t>(kHashBytes));
  const PartFile& part = active->part;
  while (active->hashed < part.num_pieces() &&
         active->state[static_cast<size_t>(active->hashed)] == Active::State::kComplete) {
    const int64_t end = part.end(active->hashed);
    lock.unlock();
    for (int64_t at = part.begin(active->hashed); at < end; at += kHashBytes) {
      if (stop_.flag()) throw FetchStopped();
      const std::span bytes(buffer.data(), static_cast<size_t>(std::min(kHashBytes, end - at)));
      part.read(at, bytes);
      active->hash.update(bytes);
    }
    lock.lock();
    ++active->hashed;
  }
  if (active->hashed == part.num_pieces())
    finish(lock, active);  // `hashing` stays: no other thread finishes it too
  else
    active->hashing = false;
}

void Download::finish(Lock& lock, const std::shared_ptr<Active>& active) {
  const HubFile& file = active->file;
  const std::string digits = active->hash.digits();
  if (digits != file.oid && active->continued) {
    notices_.push_back(
        fmt::format("{}: what an earlier run left was damaged, all of it is fetched again",
                    quotable(file.path)));
    done_ -= active->part.total_received();
    active->part.restart();
    active->hash = BlobHash(file);
    active->hashed = 0;
    active->hashing = active->continued = false;
    std::ranges::fill(active->state, Active::State::kOpen);
    changed_.notify_all();
    return;
  }
  if (digits != file.oid) {
    PartFile::remove(cache_.part(file));
    fail(ErrorCode::kBadInput,
         "{}: the {} of what was received is {}, and the hub lists {}: not kept",
         quotable(file.path), file.lfs ? "SHA-256" : "SHA-1 of git", digits, file.oid);
  }
  lock.unlock();
  active->part.commit(cache_.blob(file));
  lock.lock();
  std::erase(active_, active);
  changed_.notify_all();
}

void Download::work() {
  try {
    HttpFetch fetch(options_.policy, stop_, [this](const std::string& line) { add_notice(line); });
    for (;;) {
      Lock lock(mutex_);
      const Job job = next_job(lock);
      if (job.active == nullptr) break;
      if (job.piece >= 0) fetch_piece(lock, fetch, job);
      hash_pieces(lock, job.active);  // with the lock under which its pieces became complete
    }
  } catch (const FetchStopped&) {
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
    stop_.stop();
  }
  const std::lock_guard lock(mutex_);
  --working_;
  changed_.notify_all();
}

void Download::report(Lock& lock) {
  std::deque<std::string> notices;
  notices.swap(notices_);
  lock.unlock();
  for (const std::string& line : notices) options_.notice(line);
  options_.progress(done_, total_);
  lock.lock();
}

void Download::run() {
  std::vector<std::jthread> threads;
  try {
    working_ = options_.connections;
    for (int i = 0; i < options_.connections; ++i)
      threads.push_back(start_thread("a connection", [this] { work(); }));
    Lock lock(mutex_);
    while (working_ > 0) {
      changed_.wait_for(lock, kPoll);
      report(lock);
    }
    report(lock);
  } catch (...) {
    stop_.stop();
    throw;  // after the threads have ended
  }
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace

int64_t bytes_to_allocate(const HubCache& cache, const std::vector<HubFile>& files) {
  int64_t bytes = 0;
  std::set<std::string_view> blobs;
  for (const HubFile& file : files) {
    if (!blobs.insert(file.oid).second || cache.has(file)) continue;
    bytes += std::max<int64_t>(file.size - PartFile::allocated(cache.part(file)), 0);
  }
  return bytes;
}

void check_free_space(const HubCache& cache, const std::vector<HubFile>& files) {
  struct statvfs disk {};
  if (statvfs(cache.root().c_str(), &disk) != 0)
    fail(ErrorCode::kIo, "cannot read {}: {}", cache.root(), std::strerror(errno));
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  const int64_t need = bytes_to_allocate(cache, files);
  if (need > free)
    fail(ErrorCode::kResource,
         "{} are to be fetched, and the disk of {} has {} left: free some, or set "
         "HF_HUB_CACHE to a folder on another disk",
         size_text(need, 2), cache.root(), size_text(free, 2));
}

void fetch_blobs(const HubDownload& download, const HubCache& cache,
                 const std::vector<HubFile>& files) {
  Download(download, cache, files).run();
}

std::string escaped_path(const std::string& path) {
  std::string text;
  for (const char c : path) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    text += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return text;
}

}  // namespace dsv4
