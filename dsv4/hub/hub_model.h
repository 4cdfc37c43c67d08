// A model at the hub: the files of a revision, and single texts and headers of it without a
// download.

#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "dsv4/hub/http_fetch.h"
#include "dsv4/hub/hub_file.h"
#include "dsv4/hub/hub_name.h"
#include "dsv4/loader/checkpoint.h"

namespace dsv4 {

class HubModel {
 public:
  // Reads the list of files of the revision's commit. `notice` may be called from several threads,
  // one at a time. Throws as HttpFetch::read().
  HubModel(const HubName& name, const HubPolicy& policy, const HttpFetch::Notice& notice);

  const std::string& commit() const { return commit_; }
  const std::vector<HubFile>& files() const { return files_; }
  const HubFile* find(std::string_view path) const;  // null: no such file
  std::string file_url() const;                      // a file's escaped path follows

  // The text of a file, verified. Throws kBadInput when it has more than max_bytes.
  std::string read_text(const HubFile& file, size_t max_bytes);
  // The begin of each safetensors file with its whole header. These bytes are not verified: the
  // hash is that of the whole file.
  std::vector<std::string> read_headers(const std::vector<const HubFile*>& files);

 private:
  std::vector<HubFile> list_files();
  std::string read_header(HttpFetch& fetch, const HubFile& file) const;
  HttpFetch make_fetch();

  std::string repo_, commit_;
  HubPolicy policy_;
  HttpFetch::Notice notice_;
  std::mutex notice_mutex_;
  StopSignal stop_;
  std::vector<HubFile> files_;
};

// The text of config.json. Throws kBadInput where there is none. `what` is the model, in errors.
std::string read_hub_config(HubModel& model, const std::string& what);

// The tensors of the files that Checkpoint::open() would read, without values: for a memory plan
// before a download. Throws as it does, and as HttpFetch.
Checkpoint open_hub_checkpoint(HubModel& model, const std::string& what);

}  // namespace dsv4
