// The folder of one model in Hugging Face's cache, in huggingface_hub's layout:
//
//   ROOT/models--ORG--NAME/blobs/OID                a file's bytes, by their hash
//                          snapshots/COMMIT/PATH    a link to a blob
//                          refs/REVISION            a text: the commit of a branch or tag
//   ROOT/.locks/models--ORG--NAME/OID.lock          held by whoever writes the blob
//
// A file that is still being received is blobs/OID.dsv4-part (part_file.h), which huggingface_hub
// does not read. Links are made after all blobs, config.json's last, and then the ref.

#pragma once

#include <string>
#include <vector>

#include "dsv4/hub/hub_file.h"
#include "dsv4/hub/hub_name.h"

namespace dsv4 {

class HubCache {
 public:
  // root: hub_cache_folder()
  HubCache(std::string root, HubName name);

  const std::string& root() const { return root_; }
  std::string blob(const HubFile& file) const { return folder_ + "/blobs/" + file.oid; }
  std::string part(const HubFile& file) const { return blob(file) + ".dsv4-part"; }
  std::string lock(const HubFile& file) const { return locks_ + "/" + file.oid + ".lock"; }
  std::string snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }

  // Whether the blob is there with all its bytes.
  bool has(const HubFile& file) const;
  // The folder of the revision, complete or not; empty when there is none.
  std::string find() const;

  // Makes the folders for blobs and locks. Throws kIo.
  void make_folders() const;
  // Links the files, whose blobs are there, and records the commit of the revision. Throws kIo,
  // and kBadInput where a link leads out of the snapshot.
  void publish(const std::string& commit, const std::vector<HubFile>& files) const;

 private:
  void link_file(const std::string& snapshot, const HubFile& file) const;

  std::string root_, folder_, locks_;
  HubName name_;
};

// What a snapshot lacks to be a model: "config.json", "3 of 46 shards", or nothing.
std::string missing_in(const std::string& snapshot);

}  // namespace dsv4
