// The head of an HTTP request: accepted heads have one reading, and every prefix of them could
// still become good.

#include "dsv4/server/http_head.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  const std::string_view bytes = fuzz::text(data, size);
  const HeadLimits limits{.request_line = 64, .header_line = 64, .header_count = 8, .total = 512};
  check_partial_head(bytes, limits);
  const size_t head_bytes = head_size(bytes);
  if (head_bytes == 0) return 0;
  const std::string_view head = bytes.substr(0, head_bytes);
  if (check_head(head, limits)) return 0;
  fuzz::require(head.find('\0') == head.npos);
  for (size_t i = 0; i < head.size(); ++i) {
    fuzz::require(head[i] != '\n' || (i > 0 && head[i - 1] == '\r'));
    fuzz::require(head[i] != '\r' || (i + 1 < head.size() && head[i + 1] == '\n'));
    fuzz::require(!check_partial_head(head.substr(0, i), limits));
  }
  return 0;
}
