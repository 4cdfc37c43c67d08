// A released model's checkpoint without its bytes: real headers and index over sparse files, so
// that 160 GB of official layout take a few MB of disk and a second to make. Every weight reads as
// zero. For loaders, inspect, plans and the quantizer at full size.

#pragma once

#include <string>

namespace dsv4::test {

// Writes config.json, shards and index into an existing empty folder. `release` is "flash" or
// "pro"; with the drafter, as the releases have it.
void write_sparse_checkpoint(const std::string& release, const std::string& folder);

}  // namespace dsv4::test
