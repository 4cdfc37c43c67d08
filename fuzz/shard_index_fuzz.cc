// model.safetensors.index.json.

#include "dsv4/loader/shard_index.h"

#include "dsv4/loader/names.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] {
    for (const auto& [name, file] :
         dsv4::parse_shard_index(dsv4::fuzz::text(data, size), "input")) {
      dsv4::fuzz::require(!file.empty() && file[0] != '.' && file.find('/') == std::string::npos);
      // Renaming replaces path components; a name must not grow without limit.
      dsv4::fuzz::require(dsv4::official_name(name).size() <= 2 * name.size() + 16);
    }
  });
  return 0;
}
