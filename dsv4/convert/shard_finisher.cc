#include "dsv4/convert/shard_finisher.h"

#include <nlohmann/json.hpp>

namespace dsv4 {

void ShardFinisher::finish(const std::string& shard, std::unique_ptr<AtomicFile> file,
                           const nlohmann::json& record) {
  while (under_way_.size() >= at_once_) wait_for_oldest();
  under_way_.push_back(
      std::async(std::launch::async, [this, shard, written = std::move(file), record] {
        written->commit();
        folder_.finish(shard, record);
      }));
}

void ShardFinisher::wait() {
  while (!under_way_.empty()) wait_for_oldest();
}

void ShardFinisher::wait_for_oldest() {
  std::future<void> oldest = std::move(under_way_.front());
  under_way_.pop_front();
  oldest.get();
}

}  // namespace dsv4
