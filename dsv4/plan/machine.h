// Machines that a memory plan is compared with: a number of equal devices, each with the memory
// that a program can use, or this host.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4 {

inline constexpr int64_t kGiB = int64_t{1} << 30;

struct Machine {
  std::string name;  // "2xh200", "cpu"
  int devices = 1;
  int64_t device_bytes = 0;
  // Kept free on every device: on a GPU for graphs, libraries and the step's workspace, on the host
  // for everything else that runs there.
  int64_t reserve_bytes = 0;
  bool host = false;
};

// "cpu", or "NxGPU" with N of 1 to 64 and GPU h100 or h200. Throws kBadInput naming both forms.
Machine parse_machine(const std::string& name);

// What `dsv4 plan` lists: cpu, and 1, 2, 4 and 8 of each GPU.
std::vector<Machine> known_machines();

}  // namespace dsv4
