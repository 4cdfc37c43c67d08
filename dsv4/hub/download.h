// Files of a model, from the hub to the blobs of the cache: several ranges at a time, continued
// where an earlier run ended, each file verified before it is in place.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dsv4/hub/http_fetch.h"
#include "dsv4/hub/hub_cache.h"

namespace dsv4 {

struct HubDownload {
  HubPolicy policy;
  std::string url;  // of the files of the commit: a file's path follows
  int connections = 8;
  // Called from the thread of fetch_blobs() only.
  std::function<void(const std::string&)> notice;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of all files
};

// Bytes that the files still need on the disk, those of other processes included.
int64_t bytes_to_allocate(const HubCache& cache, const std::vector<HubFile>& files);
// Throws kResource when the disk of the cache has less than that.
void check_free_space(const HubCache& cache, const std::vector<HubFile>& files);

// Returns when the blob of every file is in place. A file that another process is fetching is left
// to it, and checked when it is done. Throws for the first file that cannot be had, or whose hash
// is not the one that the hub lists: that one is removed, the others are kept as they are, and a
// later call continues them.
void fetch_blobs(const HubDownload& download, const HubCache& cache,
                 const std::vector<HubFile>& files);

// The address of a file: every byte of the path that may mean something in an address is escaped.
std::string escaped_path(const std::string& path);

}  // namespace dsv4
