// Where a conversion works until it is done, so that an interrupt at any point costs one shard:
//
//   OUT.partial/lock            held while a process works here; goes last
//   OUT.partial/job.json        what is being made: one line per property, to recognise it again
//   OUT.partial/shards/X.json   shard X is finished: its seal, its part of the ledger
//   OUT.partial/model/          becomes OUT in one rename when everything is there
//
// A shard's file appears by rename after its bytes are on the disk; its X.json comes after it. Of a
// finished shard the seal, its length and a hash of its header, is looked at again; its data is
// not.

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
  using Job = std::map<std::string, std::string>;  // property -> what it must be to continue

  // Begins, or continues what an earlier process left. Throws kBadInput when OUT exists, when
  // OUT.partial was begun with another job or is not of this kind, and when a living process has
  // it.
  WorkFolder(const std::string& out, const Job& job, bool restart);

  const std::string& model() const { return model_; }  // OUT.partial/model
  std::string file(const std::string& name) const { return model_ + "/" + name; }

  // The record of a finished shard; false when it has to be written.
  bool finished(const std::string& shard, nlohmann::json* record) const;
  // Records a shard whose file is in place.
  void finish(const std::string& shard, const nlohmann::json& record) const;

  // Makes OUT of what was written. Nothing may be called afterwards.
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
