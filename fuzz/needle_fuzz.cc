// needle.json, and the answers generated from it.

#include "dsv4/quality/needle.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::fuzz::allow_bad_input([&] {
    const dsv4::NeedleTemplate form =
        dsv4::parse_needle_template(dsv4::fuzz::text(data, size), "input");
    dsv4::fuzz::require(!form.facts.empty() && !form.filler.empty());
    for (const dsv4::NeedleFacts& facts : form.facts) {
      dsv4::fuzz::require(!facts.keys.empty() && !facts.values.empty());
      dsv4::fuzz::require(facts.answer.find("{value}") != std::string::npos);
      dsv4::is_right(facts.fact, facts.answer);
    }
  });
  return 0;
}
