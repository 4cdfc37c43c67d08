// The working folder of a conversion, so that an interrupt at any point costs at most one shard:
//
//   OUT.partial/lock            held while a process works here; removed last
//   OUT.partial/job.json        the job: one line per property, compared when it is resumed
//   OUT.partial/shards/X.json   shard X is finished: its seal, its share of the ledger
//   OUT.partial/model/          becomes OUT in one rename when everything is written
//
// A shard's file appears by rename after its bytes are on the disk; its X.json follows. On
// resuming, the seal of a finished shard (its length and the SHA-256 of its bytes) is checked; a
// shard that has changed is written again.

#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dsv4 {

uint64_t hash_text(std::string_view text, uint64_t seed = 0);

class WorkFolder {
 public:
  using Job = std::map<std::string, std::string>;  // property -> value that must match to continue

  // Starts a conversion, or continues that of an earlier process. Throws kBadInput when OUT exists,
  // when OUT.partial was started with a different job or is not a conversion's, and when a running
  // process holds it.
  WorkFolder(const std::string& out, const Job& job, bool restart);

  const std::string& model() const { return model_; }  // OUT.partial/model
  std::string file(const std::string& name) const { return model_ + "/" + name; }

  // Whether a finished shard of its length is in place; its bytes are not read.
  bool in_place(const std::string& shard) const;
  // The record of a finished shard; false when the shard has to be written. Reads the whole shard.
  bool finished(const std::string& shard, nlohmann::json* record) const;
  // Records a shard whose file is in place.
  void finish(const std::string& shard, const nlohmann::json& record) const;

  // Turns the written files into OUT. No other method may be called afterwards.
  void publish();

 private:
  struct Lock {
    int fd = -1;
    Lock() = default;
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
  };
  void lock();
  void check_job(const Job& job) const;
  std::string record_path(const std::string& shard) const;

  std::string out_, partial_, model_;
  Lock lock_;
};

}  // namespace dsv4
