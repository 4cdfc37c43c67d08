// dsv4_sparse_checkpoint flash|pro FOLDER: makes the sparse checkpoint of sparse_checkpoint.h.

#include <cstdio>
#include <exception>
#include <filesystem>

#include "tests/harness/sparse_checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s flash|pro FOLDER\n", argv[0]);
    return 2;
  }
  try {
    std::filesystem::create_directories(argv[2]);
    dsv4::test::write_sparse_checkpoint(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
