#include "dsv4/convert/ledger.h"

#include <cmath>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/quote.h"
#include "dsv4/convert/weight_name.h"
#include "dsv4/loader/shallow_json.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr size_t kMaxBytes = size_t{256} << 20;  // Pro's ledger has about 10 MB

Json optional_number(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Rounding to a few decimals loses nothing that matters and keeps the file small.
double rounded(double value, double steps) {
  return std::round(value * steps) / steps;
}

Json totals_json(const Ledger& ledger) {
  Json totals = Json::object();
  for (const auto& [part, total] : ledger.totals()) {
    totals[part] = {
        {"weights", total.weights}, {"elements", total.elements},
        {"bytes", total.bytes},     {"bits", rounded(total.bits(), 1e4)},
        {"exact", total.exact},     {"mean_sqnr_db", optional_number(total.mean_sqnr_db)}};
  }
  return totals;
}

// At most 2^38, so that the sums over the largest file fit in 64 bits.
int64_t size_of(const Json& value, const std::string& weight) {
  constexpr int64_t kLargest = int64_t{1} << 38;
  if (!value.is_number_integer() || value > kLargest || value < 0)
    throw std::invalid_argument(
        fmt::format("{}: {} is not a size", quotable(weight), quotable(value.dump())));
  return value.get<int64_t>();
}

Json object_of(const Json& ledger, const char* key) {
  const Json& value = ledger.at(key);
  if (!value.is_object()) throw std::invalid_argument(fmt::format("{} is not an object", key));
  return value;
}

Ledger ledger_of(const Json& json) {
  if (json.at("version") != kVersion)
    throw std::invalid_argument(fmt::format("version is {}, this program reads {}",
                                            quotable(json.at("version").dump()), kVersion));
  Ledger ledger{.tool = json.at("tool").get<std::string>(),
                .source = object_of(json, "source"),
                .output = object_of(json, "output"),
                .options = object_of(json, "options")};
  for (const Json& row : json.at("weights").get_ref<const Json::array_t&>())
    ledger.weights.push_back(ledger_weight(row));
  for (const Json& entry : json.at("exceptions").get_ref<const Json::array_t&>())
    ledger.exceptions.push_back(
        {entry.at("name").get<std::string>(), entry.at("why").get<std::string>()});
  ledger.evals = json.at("evals").get_ref<const Json::array_t&>();
  return ledger;
}

std::string ledger_path(const std::string& folder) {
  return fmt::format("{}/{}", folder, kLedgerFile);
}

}  // namespace

std::map<std::string, LedgerTotal> Ledger::totals() const {
  std::map<std::string, LedgerTotal> totals;
  std::map<std::string, double> sums;
  for (const LedgerWeight& weight : weights) {
    const std::string part = name(weight_name(weight.name).part);
    LedgerTotal& total = totals[part];
    ++total.weights;
    total.elements += weight.elements;
    total.bytes += weight.bytes;
    total.exact += weight.sqnr_db ? 0 : 1;
    sums[part] += weight.sqnr_db.value_or(0);
  }
  for (auto& [part, total] : totals) {
    const int64_t lossy = total.weights - total.exact;
    if (lossy > 0) total.mean_sqnr_db = rounded(sums[part] / static_cast<double>(lossy), 1e4);
  }
  return totals;
}

Json to_json(const LedgerWeight& weight) {
  return {weight.name, weight.format, weight.elements, weight.bytes,
          weight.sqnr_db ? Json(rounded(*weight.sqnr_db, 1e4)) : Json(nullptr)};
}

LedgerWeight ledger_weight(const Json& row) {
  LedgerWeight weight{.name = row.at(0).get<std::string>(), .format = row.at(1).get<std::string>()};
  weight.elements = size_of(row.at(2), weight.name);
  weight.bytes = size_of(row.at(3), weight.name);
  if (!row.at(4).is_null()) weight.sqnr_db = row.at(4).get<double>();
  return weight;
}

std::string to_text(const Ledger& ledger) {
  const auto dump = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  // One line per weight: readable, and easy to diff.
  std::string text = fmt::format(
      "{{\"version\": {},\n\"tool\": {},\n\"source\": {},\n\"output\": {},\n\"options\": {},\n"
      "\"totals\": {},\n",
      kVersion, dump(ledger.tool), dump(ledger.source), dump(ledger.output), dump(ledger.options),
      dump(totals_json(ledger)));
  const auto list = [&](const char* key, const auto& entries, const auto& json_of) {
    text += fmt::format("\"{}\": [", key);
    const char* comma = "\n";
    for (const auto& entry : entries) {
      text += comma + dump(json_of(entry));
      comma = ",\n";
    }
    text += "],\n";
  };
  list("exceptions", ledger.exceptions, [](const LedgerException& exception) {
    return Json{{"name", exception.name}, {"why", exception.why}};
  });
  list("weights", ledger.weights, [](const LedgerWeight& weight) { return to_json(weight); });
  return text + fmt::format("\"evals\": {}}}\n", dump(ledger.evals));
}

Ledger parse_ledger(std::string_view text, const std::string& what) {
  const Json json = parse_shallow_json(text, what);
  try {
    return ledger_of(json);
  } catch (const Json::exception&) {
    // A key that is missing or of another type than a ledger has; the library's text names neither
    // file nor place.
    fail(ErrorCode::kBadInput,
         "{}: not a quantization ledger: want version, tool, source, output, options, weights, "
         "exceptions and evals as dsv4 quantize writes them",
         what);
  } catch (const std::invalid_argument& error) {
    fail(ErrorCode::kBadInput, "{}: {}", what, error.what());
  }
}

std::optional<Ledger> read_ledger(const std::string& folder) {
  const std::string path = ledger_path(folder);
  if (!is_present(path)) return std::nullopt;
  return parse_ledger(read_text_file(path, kMaxBytes), path);
}

void check_ledger_can_be_extended(const std::string& folder) {
  if (!read_ledger(folder))
    fail(ErrorCode::kBadInput, "{} has no {}: dsv4 quantize writes one", folder, kLedgerFile);
  const AtomicFile probe(ledger_path(folder));  // removed again: it is never committed
}

void append_eval(const std::string& folder, const Json& eval) {
  std::optional<Ledger> ledger = read_ledger(folder);
  if (!ledger)
    fail(ErrorCode::kBadInput, "{} has no {}: dsv4 quantize writes one", folder, kLedgerFile);
  ledger->evals.push_back(eval);
  write_file(ledger_path(folder), to_text(*ledger));
}

}  // namespace dsv4
