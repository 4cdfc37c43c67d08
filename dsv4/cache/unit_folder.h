// The disk tier's folder: one file a unit, DIR/FINGERPRINT/KEY.dpc (docs/spec/serving.md 5.5).
//
//   DIR/6f1a.../             16 digits of the fingerprint; permissions 0700
//     0c55....dpc            a unit, named by its key
//     bad/                   files that were refused
//     lock                   held by the one program that writes here
//
// There is no index file that could disagree with the units: the headers are read at the start.
// Temporary files of a program that was killed are removed then. read() and move_to_bad() may be
// called by several threads, the others by one at a time.

#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "dsv4/cache/unit_file.h"

namespace dsv4 {

class UnitFolder {
 public:
  // Throws kBadInput when another program holds the folder or another user could have written it
  // (private_folder.h), kIo when it cannot be made or written.
  UnitFolder(const std::string& folder, const Digest& fingerprint);
  ~UnitFolder();
  UnitFolder(const UnitFolder&) = delete;
  UnitFolder& operator=(const UnitFolder&) = delete;

  struct File {
    UnitHeader header;
    int64_t bytes = 0;
    double age_seconds = 0;  // since it was written
  };
  // Every file whose header is whole and of this cache; others go to bad/. Files that the system
  // does not let us read now stay where they are.
  std::vector<File> scan(const UnitLayout& layout);
  int64_t num_bad() const { return num_bad_; }

  // As write_unit() and read_unit(). write() returns the size of the file.
  int64_t write(const UnitHeader& header, const UnitPieces& pieces);
  void read(const UnitHeader& header, UnitPieces& pieces) const;
  void remove(const PrefixKey& key);
  // Removes the oldest units of other fingerprints in DIR that no program holds, and the oldest
  // files in bad/, until so many bytes are left. Returns the bytes that are.
  int64_t shrink_others(int64_t max_bytes);
  void move_to_bad(const PrefixKey& key);

 private:
  std::string path_of(const PrefixKey& key) const;
  void move_to_bad(const std::string& path);

  std::string root_, folder_;  // DIR, DIR/FINGERPRINT
  Digest fingerprint_;
  int lock_ = -1;
  std::atomic<int64_t> num_bad_ = 0;
};

}  // namespace dsv4
