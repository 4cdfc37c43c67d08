#include "dsv4/convert/work_folder.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "dsv4/base/ascii.h"
#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/loader/shallow_json.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxRecord = size_t{64} << 20;

template <class Action>
void io(const char* doing, const std::string& path, const Action& action) {
  std::error_code error;
  action(error);
  if (error) fail(ErrorCode::kIo, "cannot {} {}: {}", doing, path, error.message());
}

// As job.json holds it: JSON is UTF-8, and a recipe or a path may have any bytes.
std::string text_of(const WorkFolder::Job& job) {
  return Json(job).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

struct FreeDigest {
  void operator()(EVP_MD_CTX* digest) const { EVP_MD_CTX_free(digest); }
};

// Length and SHA-256, as comparable text. Reads by pieces: mapped bytes would count as memory.
std::string seal(const std::string& path) {
  const std::unique_ptr<EVP_MD_CTX, FreeDigest> digest(EVP_MD_CTX_new());
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(size_t{1} << 20);
  bool hashed = digest != nullptr && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1;
  uint64_t length = 0;
  while (hashed && file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto count = static_cast<size_t>(file.gcount());
    length += count;
    hashed = EVP_DigestUpdate(digest.get(), piece.data(), count) == 1;
  }
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  if (!hashed || EVP_DigestFinal_ex(digest.get(), sum, &bytes) != 1)
    fail(ErrorCode::kResource, "libcrypto cannot hash {}", path);
  if (file.bad() || !file.eof()) fail(ErrorCode::kIo, "cannot read {}", path);
  return fmt::format("{}-{}", length, hex_digits({sum, bytes}));
}

// Removes the half-written files of a killed process.
void remove_temporaries(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".tmp") fs::remove(entry.path(), ignored);
  }
}

}  // namespace

uint64_t hash_text(std::string_view text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325ull ^ seed;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

WorkFolder::WorkFolder(const std::string& out, const Job& job, bool restart)
    : out_(without_slashes(out)), partial_(out_ + ".partial"), model_(partial_ + "/model") {
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(out_, ignored)))
    fail(ErrorCode::kBadInput, "{} already exists: remove it, or choose another folder", out_);
  const std::string job_file = partial_ + "/job.json";
  const bool there = fs::exists(partial_, ignored), ours = fs::exists(job_file, ignored);
  if (there && !ours && !fs::is_empty(partial_, ignored) &&
      !fs::exists(partial_ + "/lock", ignored))
    fail(ErrorCode::kBadInput, "{} is not an unfinished conversion: move it elsewhere", partial_);
  io("create", partial_, [&](std::error_code& e) { fs::create_directories(partial_, e); });
  lock();
  if (ours && !restart) {
    check_job(job);
  } else {
    // job.json is removed first and written last: without it the folder counts as empty.
    io("remove", partial_, [&](std::error_code& e) { fs::remove(job_file, e); });
    for (const char* part : {"/model", "/shards"})
      io("remove", partial_ + part,
         [&](std::error_code& e) { fs::remove_all(partial_ + part, e); });
  }
  for (const char* part : {"/model", "/shards"})
    io("create", partial_ + part,
       [&](std::error_code& e) { fs::create_directories(partial_ + part, e); });
  for (const char* part : {"", "/model", "/shards"}) remove_temporaries(partial_ + part);
  if (!ours || restart) write_file(job_file, text_of(job));
}

WorkFolder::Lock::~Lock() {
  if (fd >= 0) close(fd);
}

void WorkFolder::lock() {
  const std::string path = partial_ + "/lock";
  lock_.fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_.fd < 0) fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
  // On a file system without locks the user is responsible.
  if (flock(lock_.fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  fail(ErrorCode::kBadInput, "another process is writing {}", partial_);
}

void WorkFolder::check_job(const Job& job) const {
  const std::string path = partial_ + "/job.json";
  Job started;
  try {
    started = Json::parse(read_text_file(path, kMaxRecord)).get<Job>();
  } catch (const Json::exception&) {
    fail(ErrorCode::kBadInput, "{} is damaged: use --restart to start over", path);
  }
  for (const auto& [property, value] : Json::parse(text_of(job)).get<Job>()) {
    if (const auto at = started.find(property); at == started.end() || at->second != value)
      fail(ErrorCode::kBadInput,
           "{} was started with a different {}: repeat the original command to continue, or use "
           "--restart to start over",
           partial_, property);
  }
}

std::string WorkFolder::record_path(const std::string& shard) const {
  return fmt::format("{}/shards/{}.json", partial_, shard);
}

bool WorkFolder::finished(const std::string& shard, Json* record) const {
  std::error_code ignored;
  if (!fs::exists(record_path(shard), ignored) || !fs::exists(file(shard), ignored)) return false;
  try {
    const std::string path = record_path(shard);
    const Json stored = parse_shallow_json(read_text_file(path, kMaxRecord), path);
    if (stored.at("seal") != seal(file(shard))) return false;
    *record = stored.at("record");
    return true;
  } catch (const Json::exception&) {  // a damaged record: the shard is rewritten
    return false;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    return false;
  }
}

bool WorkFolder::in_place(const std::string& shard) const {
  std::error_code error;
  const auto length = fs::file_size(file(shard), error);
  if (error) return false;
  try {
    const Json stored = Json::parse(read_text_file(record_path(shard), kMaxRecord));
    return stored.at("seal").get<std::string>().starts_with(fmt::format("{}-", length));
  } catch (const Error&) {
    return false;
  } catch (const Json::exception&) {
    return false;
  }
}

void WorkFolder::finish(const std::string& shard, const Json& record) const {
  const Json stored = {{"seal", seal(file(shard))}, {"record", record}};
  write_file(record_path(shard),
             stored.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void WorkFolder::publish() {
  io("create", out_, [&](std::error_code& e) { fs::rename(model_, out_, e); });
  // OUT is complete; leftovers of an interrupt here are useless and harmless. The lock identifies
  // the folder as a conversion's to a later run, so it is removed last.
  std::error_code ignored;
  for (const char* part : {"/shards", "/job.json", "/lock", ""})
    fs::remove_all(partial_ + part, ignored);
}

}  // namespace dsv4
