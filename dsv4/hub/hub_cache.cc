#include "dsv4/hub/hub_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/loader/shard_index.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";

// "models--ORG--NAME"
std::string folder_name(const std::string& repo) {
  const size_t slash = repo.find('/');
  return "models--" + repo.substr(0, slash) + "--" + repo.substr(slash + 1);
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(ErrorCode::kIo, "cannot create {}: {}", path, error.message());
}

// The folder of a file below the snapshot; no part of it may be a link to somewhere else.
void make_folder_inside(const std::string& snapshot, const std::string& path) {
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
    const std::string folder = snapshot + "/" + path.substr(0, slash);
    make_folder(folder);
    if (fs::is_symlink(folder))
      fail(ErrorCode::kBadInput, "{} is a link, not a folder: remove it", folder);
  }
}

// "../../blobs/OID" from a file of the snapshot's own folder, one ".." more in each folder below.
std::string link_text(const HubFile& file) {
  std::string text = "../../";
  for (const char c : file.path) text += c == '/' ? "../" : "";
  return text + "blobs/" + file.oid;
}

bool has_safetensors(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") return true;
  }
  return false;
}

}  // namespace

HubCache::HubCache(std::string root, HubName name)
    : root_(std::move(root)),
      folder_(root_ + "/" + folder_name(name.repo)),
      locks_(root_ + "/.locks/" + folder_name(name.repo)),
      name_(std::move(name)) {
}

bool HubCache::has(const HubFile& file) const {
  struct stat info {};
  return stat(blob(file).c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file.size;
}

std::string HubCache::find() const {
  std::string commit = name_.revision;
  if (!is_commit(commit)) {
    const std::string ref = folder_ + "/refs/" + name_.revision;
    std::error_code error;
    if (!fs::is_regular_file(ref, error)) return "";
    constexpr size_t kMaxRef = 100;
    commit = read_text_file(ref, kMaxRef);
    commit.erase(commit.find_last_not_of(" \n\r") + 1);
  }
  // Whatever the file holds, it may not lead out of snapshots/.
  const bool plain = commit.find_first_not_of("0123456789abcdef") == commit.npos;
  std::error_code error;
  return plain && !commit.empty() && fs::is_directory(snapshot(commit), error) ? snapshot(commit)
                                                                               : "";
}

void HubCache::make_folders() const {
  make_folder(folder_ + "/blobs");
  make_folder(locks_);
}

void HubCache::link_file(const std::string& snapshot, const HubFile& file) const {
  make_folder_inside(snapshot, file.path);
  const std::string link = snapshot + "/" + file.path, text = link_text(file);
  std::error_code error;
  const fs::file_status there = fs::symlink_status(link, error);
  if (fs::is_symlink(there) && fs::read_symlink(link, error) == text) return;
  // Where links are not to be had, huggingface_hub moves the blob itself here.
  if (fs::is_regular_file(there) && fs::file_size(link, error) == static_cast<uint64_t>(file.size))
    return;
  const std::string temporary = fmt::format("{}.{}.tmp", link, getpid());
  fs::remove(temporary, error);
  fs::create_symlink(text, temporary, error);
  if (!error) fs::rename(temporary, link, error);
  if (error) fail(ErrorCode::kIo, "cannot link {}: {}", link, error.message());
}

void HubCache::publish(const std::string& commit, const std::vector<HubFile>& files) const {
  const std::string to = snapshot(commit);
  make_folder(to);
  std::vector<const HubFile*> order;
  for (const HubFile& file : files) order.push_back(&file);
  std::stable_partition(order.begin(), order.end(),
                        [](const HubFile* file) { return file->path != kConfig; });
  for (const HubFile* file : order) link_file(to, *file);
  if (name_.revision == commit || find() == to) return;
  const std::string ref = folder_ + "/refs/" + name_.revision;
  make_folder(fs::path(ref).parent_path().string());
  write_file(ref, commit);
}

std::string missing_in(const std::string& snapshot) {
  if (!is_present(snapshot + "/" + kConfig)) return kConfig;
  const std::string index = snapshot + "/" + kShardIndexFile;
  if (!is_present(index)) return has_safetensors(snapshot) ? "" : "safetensors files";
  std::set<std::string> shards;
  for (const auto& [name, file] : parse_shard_index(read_text_file(index), index))
    shards.insert(file);
  std::error_code ignored;
  const auto missing = std::ranges::count_if(
      shards, [&](const std::string& file) { return !fs::exists(snapshot + "/" + file, ignored); });
  return missing == 0 ? "" : fmt::format("{} of {} shards", missing, shards.size());
}

}  // namespace dsv4
