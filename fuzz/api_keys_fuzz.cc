// A file of API keys.

#include "dsv4/server/api_keys.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  fuzz::allow_bad_input([&] {
    const ApiKeys keys = ApiKeys::parse(fuzz::text(data, size), "input");
    fuzz::require(keys.find("") == nullptr);
  });
  return 0;
}
