#include "dsv4/ops/model/embed/embed_case.h"

#include "dsv4/ops/oracle.h"

namespace dsv4 {

std::vector<double> embed_oracle(const EmbedArgs& args) {
  std::vector<double> out;
  for (int64_t t = 0; t < args.ids.dim(0); ++t) {
    const int64_t id = static_cast<int64_t>(oracle::value(args.ids, t)) - args.first.value_or(0);
    const std::vector<double> row =
        id < 0 || id >= args.table.dim(0)
            ? std::vector<double>(static_cast<size_t>(args.table.dim(1)))
            : oracle::row(args.table, id);
    for (int64_t m = 0; m < args.out.dim(1); ++m) out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

}  // namespace dsv4
