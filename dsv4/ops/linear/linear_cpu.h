// CPU row of linear.h, and the list-of-products form that ops built from products share.

#pragma once

#include <span>

#include "dsv4/ops/linear/linear.h"

namespace dsv4 {

// out = x w^T. With `gather`, row t of the product reads row gather[t] of x, and t counts out rows.
struct LinearJob {
  LinearArgs args;
  const int32_t* gather = nullptr;
};

// Runs all jobs in one parallel region; arguments are not checked. The bits of an output element
// depend on its token's x and its row of w alone: not on t, on the other jobs, or on threads.
void linear_jobs(std::span<const LinearJob> jobs);

void linear_cpu(const Context& context, const LinearArgs& args);

}  // namespace dsv4
