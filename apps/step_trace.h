// A trace of one step as JSON (`dsv4 bench decode --trace FILE`): each kernel with its start, its
// time and the gap before it, and per kernel name the sums.

#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "dsv4/plan/probe.h"

namespace dsv4::apps {

// kernels: in order of their start. A gap is the time from the latest end of all earlier kernels; a
// negative one is an overlap.
//
//   {"wall_us", "idle_us": without any kernel, "overlap_us": sum of overlaps,
//    "by_kernel": [{"kernel", "launches", "us", "gap_us"}], "kernels": [{"kernel", ..}]}
nlohmann::ordered_json trace_report(const std::vector<KernelRun>& kernels);

}  // namespace dsv4::apps
