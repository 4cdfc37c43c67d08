#include "dsv4/base/size_text.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>

namespace dsv4 {

std::string size_text(int64_t bytes, int digits) {
  if (bytes < 0) return fmt::format("-{}", size_text(-bytes, digits));
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB"}) {
    value /= 1024;
    unit = larger;
    if (value < 1024) break;
  }
  return fmt::format("{:.{}f} {}", value, digits, unit);
}

std::optional<int64_t> parse_size(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || !(number > 0)) return {};
  std::string unit(at, end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
  constexpr std::string_view kUnits = "KMGT";
  const size_t power = unit.size() == 1 ? kUnits.find(unit) : kUnits.npos;
  if (power == kUnits.npos) return {};
  const double bytes = std::ldexp(number, 10 * static_cast<int>(power + 1));
  if (bytes >= 0x1p60) return {};
  return static_cast<int64_t>(bytes);
}

}  // namespace dsv4
