// Weights of a checkpoint whose only file is the input, mainly k-bit ones: an accepted weight can
// be read completely, including every scale byte.

#include <cmath>

#include "dsv4/loader/checkpoint.h"
#include "fuzz/fuzz.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

void read_all(const WeightView& weight) {
  check("weight", weight);
  for (int64_t n = 0; n < weight.n; ++n) {
    for (int64_t k = 0; k < weight.k; ++k) {
      const double value = weight_value(weight, n, k);
      if (weight.format == WeightFormat::kKbit) fuzz::require(std::isfinite(value));
    }
  }
}

void check_input(std::string_view bytes) {
  static const test::TempFolder folder;
  folder.write("model.safetensors", bytes);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  for (const int64_t k : {32, 64}) {
    fuzz::allow_bad_input([&] { read_all(checkpoint.weight("w", 2, k)); });
  }
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] { dsv4::check_input(dsv4::fuzz::text(data, size)); });
  return 0;
}
