// The hash that names a blob of the hub: SHA-256 of a large file, or git's SHA-1 of a small one.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "dsv4/hub/hub_file.h"

typedef struct evp_md_ctx_st EVP_MD_CTX;

namespace dsv4 {

class BlobHash {
 public:
  explicit BlobHash(const HubFile& file);
  void update(std::span<const std::byte> bytes);
  std::string digits();  // once, at the end

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const;
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace dsv4
