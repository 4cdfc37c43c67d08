#include "dsv4/cache/unit_folder.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/cache/private_folder.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSuffix = ".dpc";

int64_t file_bytes(const std::string& path) {
  std::error_code ignored;
  const uintmax_t bytes = fs::file_size(path, ignored);
  return ignored ? 0 : static_cast<int64_t>(bytes);
}

double age_seconds(const std::string& path) {
  std::error_code ignored;
  const fs::file_time_type written = fs::last_write_time(path, ignored);
  if (ignored) return 0;
  const auto age = fs::file_time_type::clock::now() - written;
  return std::max(0.0, std::chrono::duration<double>(age).count());
}

// What is in the folder, up to an error.
std::vector<fs::directory_entry> entries_of(const std::string& folder, std::error_code& error) {
  std::vector<fs::directory_entry> found;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    found.push_back(*entry);
  return found;
}

// Files of the folder with this ending, up to an error.
std::vector<std::string> files_ending(const std::string& folder, std::string_view ending,
                                      std::error_code& error) {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : entries_of(folder, error)) {
    if (entry.path().filename().string().ends_with(ending)) found.push_back(entry.path().string());
  }
  return found;
}

// The lock file of a folder of this cache.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : file_(open_private_file(folder + "/lock", /*make=*/false)),
        held_(file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0) {}
  FolderLock(FolderLock&& other) noexcept
      : file_(std::exchange(other.file_, -1)), held_(other.held_) {}
  ~FolderLock() {
    if (file_ >= 0) close(file_);
  }

  bool held() const { return held_; }

 private:
  int file_;
  bool held_;
};

}  // namespace

UnitFolder::UnitFolder(const std::string& folder, const Digest& fingerprint)
    : root_(folder), fingerprint_(fingerprint) {
  make_private_folder(folder, /*may_be_link=*/true);
  PrefixKey name;
  std::copy_n(fingerprint.begin(), name.bytes.size(), name.bytes.begin());
  folder_ = folder + "/" + name.hex().substr(0, 16);
  make_private_folder(folder_, /*may_be_link=*/false);
  make_private_folder(folder_ + "/bad", /*may_be_link=*/false);
  lock_ = open_private_file(folder_ + "/lock", /*make=*/true);
  if (lock_ < 0) fail(ErrorCode::kIo, "cannot write {}/lock: {}", folder_, std::strerror(errno));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    close(lock_);
    fail(ErrorCode::kBadInput,
         "another program uses the prefix cache in {}: give each server a folder of its own",
         folder);
  }
  std::error_code ignored;
  for (const std::string& path : files_ending(folder_, ".tmp", ignored)) unlink(path.c_str());
}

UnitFolder::~UnitFolder() {
  close(lock_);
}

std::string UnitFolder::path_of(const PrefixKey& key) const {
  return fmt::format("{}/{}{}", folder_, key.hex(), kSuffix);
}

std::vector<UnitFolder::File> UnitFolder::scan(const UnitLayout& layout) {
  std::vector<File> files;
  std::error_code failed;
  for (const std::string& path : files_ending(folder_, kSuffix, failed)) {
    try {
      File file{read_unit_header(path, UnitOwner::kThisUser), file_bytes(path), age_seconds(path)};
      const UnitHeader& header = file.header;
      if (header.fingerprint != fingerprint_ || header.layout != layout ||
          path != path_of(header.key))
        fail(ErrorCode::kBadInput, "{} is of another cache", path);
      files.push_back(std::move(file));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) move_to_bad(path);
    }
  }
  if (failed) fail(ErrorCode::kIo, "cannot read the folder {}: {}", folder_, failed.message());
  return files;
}

int64_t UnitFolder::write(const UnitHeader& header, const UnitPieces& pieces) {
  const std::string path = path_of(header.key);
  write_unit(path, header, pieces);
  return file_bytes(path);
}

void UnitFolder::read(const UnitHeader& header, UnitPieces& pieces) const {
  const std::string path = path_of(header.key);
  // A file that was deleted is missing for good; other errors of the system may pass.
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT)
    fail(ErrorCode::kBadInput, "{} was deleted", path);
  read_unit(path, header, pieces, UnitOwner::kThisUser);
}

void UnitFolder::remove(const PrefixKey& key) {
  unlink(path_of(key).c_str());
}

int64_t UnitFolder::shrink_others(int64_t max_bytes) {
  struct Old {
    double age = 0;
    int64_t bytes = 0;
    std::string path;
  };
  std::vector<Old> files;
  int64_t total = 0;
  std::error_code ignored;  // a folder may go at any time, and this runs in the store's thread
  const auto add = [&](const std::string& folder) {
    for (const std::string& path : files_ending(folder, kSuffix, ignored)) {
      files.push_back({age_seconds(path), file_bytes(path), path});
      total += files.back().bytes;
    }
  };
  add(folder_ + "/bad");
  std::vector<FolderLock> locks;  // so that no program begins with a folder while files go
  for (const fs::directory_entry& entry : entries_of(root_, ignored)) {
    const std::string path = entry.path().string();
    if (path == folder_ || entry.is_symlink(ignored) || !entry.is_directory(ignored) ||
        !fs::exists(path + "/lock", ignored))
      continue;
    if (!locks.emplace_back(path).held()) continue;
    add(path);
    if (fs::exists(path + "/bad", ignored)) add(path + "/bad");
  }
  std::ranges::sort(files, std::greater{}, &Old::age);
  for (const Old& file : files) {
    if (total <= max_bytes) break;
    if (unlink(file.path.c_str()) == 0) total -= file.bytes;
  }
  return total;
}

void UnitFolder::move_to_bad(const PrefixKey& key) {
  move_to_bad(path_of(key));
}

void UnitFolder::move_to_bad(const std::string& path) {
  ++num_bad_;
  std::error_code failed;
  fs::rename(path, folder_ + "/bad/" + fs::path(path).filename().string(), failed);
  if (failed) unlink(path.c_str());
}

}  // namespace dsv4
