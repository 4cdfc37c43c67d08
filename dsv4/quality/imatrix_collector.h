// Measures how important the columns of every weight matrix are, for `dsv4 quantize --imatrix`:
//
//   importance[j] = mean over the tokens of x[t, j]^2,   x: what the matrix is multiplied with
//
// The output of a product has the error sum_j x_j (w_j - w'_j), so a column whose inputs are large
// deserves exact weights. A routed expert has the mean over the tokens that chose it; its w2 is
// multiplied with h, which has the routing weight in it (ops/parts/experts/experts.h). wo_a, which
// is block-diagonal, has the mean over tokens and groups. Inputs are those of the step's numerics,
// after Q8 where a product takes codes; those of experts are counted before Q8.
//
// The file is what convert/imatrix.h describes: an F32 [k] for each matrix that was used. Its
// metadata has the number of rows of each mean under the name of the matrix. A matrix that no token
// used has no entry: experts that were not chosen, indexers that had nothing to leave out, and the
// drafter's block, which evaluations do not run.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dsv4/model/model.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

// Observes steps on the host, of a whole model: kernels of a device multiply where no observer sees
// the inputs.
class ImatrixCollector final : public Observer {
 public:
  explicit ImatrixCollector(const Model& model);  // must outlive the collector
  void observe(const OpCall& call) override;

  struct Sums {
    std::vector<double> squares;  // [k]
    int64_t rows = 0;             // inputs that were added
  };
  // By the name of the matrix, such as layers.0.ffn.experts.3.w1.
  const std::map<std::string, Sums>& sums() const { return sums_; }

  // Throws kBadInput when no matrix was used. `metadata` is written beside the numbers of rows.
  void write(const std::string& path, std::map<std::string, std::string> metadata) const;

 private:
  Sums* sums_of(const WeightView& weight);
  void add_linear(const OpCall& call);
  void add_experts(const OpCall& call);

  std::map<const std::byte*, std::string> names_;  // of weights, by the address of their data
  std::map<std::string, Sums> sums_;
};

}  // namespace dsv4
