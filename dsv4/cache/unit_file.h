// A unit: what a text adds to the unit of a shorter one, so that a sequence can be continued at its
// end. One unit is one file (docs/spec/serving.md 5.5).
//
//   blocks       bytes of the pages of each step of tokens, in order
//   checkpoint   bytes of the window's pages and of the compressors' rows at the end
//
//   file   magic "DSV4PFX1", u32 version, u32 header bytes
//     16   fingerprint[32], salt[16], key[16], parent key[16] (zero: the text begins here)
//     96   u64 position, u32 run, u32 block bytes, u64 checkpoint bytes, u32 step, u32 flags
//    128   four sections of u64 offset, u64 length, XXH3-128: ids i32[run], blocks, checkpoint, and
//          one that is empty in this version
//    256   XXH3-128 of everything before it
//    320   the sections, each at a multiple of 64
//    end   u64 bytes of the file, magic "DSV4PFXE"
//
// Little-endian. A file appears whole or not at all, and a reader trusts no number of it before its
// hash has been checked. What the bytes mean is the caller's; position, run and step are tokens.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv4/cache/prefix_key.h"

namespace dsv4 {

// Sizes that are equal for all units of one cache.
struct UnitLayout {
  int64_t step = 0;              // tokens of a block
  int64_t block_bytes = 0;       // of all pages of a step
  int64_t checkpoint_bytes = 0;  // of one checkpoint

  bool operator==(const UnitLayout&) const = default;
};

struct UnitHeader {
  Digest fingerprint{};
  PrefixKey salt, key, parent;
  int64_t position = 0;  // tokens of the whole text
  int64_t run = 0;       // of them, those whose blocks are here: the last ones
  UnitLayout layout;

  bool operator==(const UnitHeader&) const = default;
  bool is_root() const { return parent == PrefixKey{}; }
  int64_t blocks() const { return run / layout.step; }
  int64_t payload_bytes() const { return blocks() * layout.block_bytes + layout.checkpoint_bytes; }
};

// The contents of a unit in memory that may lie in pieces.
struct UnitPieces {
  std::vector<int32_t> ids;                      // [run]
  std::vector<std::span<std::byte>> blocks;      // blocks() * block_bytes in all
  std::vector<std::span<std::byte>> checkpoint;  // checkpoint_bytes in all
};

// Readable by the owner only. Throws kIo; then there is no file, or the one from before.
void write_unit(const std::string& path, const UnitHeader& header, const UnitPieces& pieces);

// Whose file may be read: anyone's, or only one of this user that is no link, as those in the
// folder of a cache.
enum class UnitOwner { kAnyone, kThisUser };

// Throws kBadInput with the reason for a file that is no whole unit, kIo where the system refuses.
// The sections are not read.
UnitHeader read_unit_header(const std::string& path, UnitOwner owner = UnitOwner::kAnyone);
// Fills the pieces, whose sizes must be those of `header`; `ids` is resized. Throws as above, also
// when the file's header is another one or a hash differs; the pieces then hold anything.
void read_unit(const std::string& path, const UnitHeader& header, UnitPieces& pieces,
               UnitOwner owner = UnitOwner::kAnyone);

}  // namespace dsv4
