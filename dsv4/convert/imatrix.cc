#include "dsv4/convert/imatrix.h"

#include <cmath>
#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

void check_vector(const std::string& name, const ConstTensorView& values, int64_t k,
                  const std::string& what) {
  if (values.dtype != DType::kF32 || values.rank != 1 || values.dim(0) != k)
    fail(ErrorCode::kBadInput, "{}: {}: want [{}] F32, one value per column, got {}", what,
         quotable(name), k, to_string(values));
  for (int64_t i = 0; i < k; ++i) {
    const float value = values.as<float>()[i];
    if (!(value >= 0) || !std::isfinite(value))
      fail(ErrorCode::kBadInput, "{}: {}: value {} is {}: want finite values >= 0", what,
           quotable(name), i, value);
  }
}

}  // namespace

ImatrixUse check_imatrix(const std::map<std::string, ConstTensorView>& imatrix,
                         const ConvertList& list, const std::string& what) {
  ImatrixUse use;
  std::set<std::string_view> known;
  for (const OutputItem& item : list.items) {
    if (item.is_weight) known.insert(item.name);
    // A lossless import has no scales to search.
    const bool searched = item.target.kind == Target::Kind::kKbit || is_fp4(item.target);
    if (!searched || item.lossless_import()) continue;
    const auto at = imatrix.find(item.name);
    if (at == imatrix.end()) {
      ++use.missing;
      continue;
    }
    check_vector(item.name, at->second, item.k, what);
    ++use.used;
  }
  for (const auto& [name, values] : imatrix) {
    if (known.count(name) == 0) use.unknown.push_back(name);
  }
  return use;
}

}  // namespace dsv4
