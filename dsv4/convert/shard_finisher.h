// Flushes and seals finished shards of a work folder while further ones are written: both read or
// write every byte once more.

#pragma once

#include <cstddef>
#include <deque>
#include <future>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dsv4/base/atomic_file.h"
#include "dsv4/convert/work_folder.h"

namespace dsv4 {

class ShardFinisher {
 public:
  // at_once: shards under way, at most. The folder outlives the finisher, whose destructor waits.
  ShardFinisher(const WorkFolder& folder, size_t at_once) : folder_(folder), at_once_(at_once) {}

  // Commits the file and calls WorkFolder::finish() in another thread. Throws what an earlier shard
  // threw there.
  void finish(const std::string& shard, std::unique_ptr<AtomicFile> file,
              const nlohmann::json& record);
  // Until all are finished; throws as above.
  void wait();

 private:
  void wait_for_oldest();

  const WorkFolder& folder_;
  const size_t at_once_;
  std::deque<std::future<void>> under_way_;
};

}  // namespace dsv4
