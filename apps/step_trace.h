// A trace of one step as JSON (`dsv4 bench decode --trace FILE`): each kernel with its start, its
// time, the gap before it and the time that it adds to the step, and per kernel name the sums.

#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "dsv4/plan/probe.h"

namespace dsv4::apps {

// kernels: in order of their start. A gap is the time from the latest end of all earlier kernels to
// the start; a negative one is an overlap. "exposed" is from there to the kernel's own end, so that
// all of a step's add up to its time; 0 for a kernel that ends before an earlier one.
//
//   {"wall_us", "idle_us": without any kernel, "overlap_us": sum of overlaps,
//    "by_kernel": [{"kernel", "launches", "us", "gap_us", "exposed_us"}], most exposed first,
//    "kernels": [{"kernel", "start_us", "us", "gap_us", "exposed_us", "ctas"}]}
nlohmann::ordered_json trace_report(const std::vector<KernelRun>& kernels);

}  // namespace dsv4::apps
