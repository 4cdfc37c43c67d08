// What Hugging Face's hub answers, and names of models: dsv4/hub/hub_file.h, hub_name.h.

#include <cmath>

#include "dsv4/hub/hub_file.h"
#include "dsv4/hub/hub_name.h"
#include "fuzz/fuzz.h"

namespace {

using dsv4::fuzz::allow_bad_input;
using dsv4::fuzz::require;

void require_inside(std::string_view path) {
  require(!path.empty() && path[0] != '/' && path != ".." && !path.starts_with("../") &&
          !path.ends_with("/..") && path.find("/../") == path.npos && path.find('\0') == path.npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = dsv4::fuzz::text(data, size);
  allow_bad_input([&] {
    const auto files = dsv4::parse_hub_tree(text, "input");
    for (const dsv4::HubFile& file : files) {
      require_inside(file.path);
      require(file.size >= 0 && file.oid.size() == (file.lfs ? 64 : 40));
      require(file.oid.find_first_not_of("0123456789abcdef") == file.oid.npos);
    }
    dsv4::check_hub_paths(files, "input");
  });
  allow_bad_input([&] { require(dsv4::is_commit(dsv4::parse_hub_commit(text, "input"))); });
  if (const auto name = dsv4::parse_hub_name(text)) {
    require_inside(name->revision);
    const size_t slash = name->repo.find('/');
    require(slash != std::string::npos && name->repo.find('/', slash + 1) == std::string::npos);
    require(name->revision == "main" || name->text() == text);
  }
  require(dsv4::next_page(text).size() <= size);
  const double seconds = dsv4::retry_after_s(text);
  require(seconds == -1 || (seconds >= 0 && std::isfinite(seconds)));
  dsv4::ContentRange range;
  if (dsv4::parse_content_range(text, &range))
    require(range.first >= 0 && range.last >= 0 && range.size >= 0);
  return 0;
}
