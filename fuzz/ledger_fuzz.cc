// quantization_ledger.json.

#include "dsv4/convert/ledger.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] {
    const dsv4::Ledger ledger = dsv4::parse_ledger(dsv4::fuzz::text(data, size), "input");
    // An accepted ledger can be written and read again.
    const std::string text = dsv4::to_text(ledger);
    dsv4::fuzz::require(dsv4::to_text(dsv4::parse_ledger(text, "again")) == text);
  });
  return 0;
}
