// What the link between host and GPU carries, measured as the engine uses it: the copy engine, the
// copies of experts_fetch with few CTAs, and both beside other traffic. The results decide how many
// CTAs fetch, and what a plan may expect (docs/experts-in-host-memory.md). CUDA builds measure.
//
// Several kinds of traffic at a time: each is repeated in batches with an event behind each, and
// its rate is that of the batches in the time in which all of them ran.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4 {

class Device;

struct LinkOptions {
  int64_t expert_bytes = 13'369'344;      // V4-Flash in FP4; rounded up to a multiple of 256
  int64_t host_bytes = int64_t{4} << 30;  // page-locked: more than caches hold
  int64_t batch_bytes = int64_t{128} << 20;
  int batches = 24;  // of each kind of traffic
  int threads = 1;   // that read host memory
  std::vector<int> ctas = {1, 2, 4, 8};
};

// Bytes per second; 0: that traffic is not in the row.
struct LinkRates {
  double up = 0;         // host to GPU by the copy engine
  double down = 0;       // GPU to host by the copy engine
  double kernel = 0;     // host to GPU by the kernel
  double device = 0;     // copies inside of GPU memory, bytes read plus bytes written
  double host_read = 0;  // by threads
};

struct LinkRow {
  std::string what;
  int ctas = 0;  // of the kernel
  LinkRates rates;
};

struct LinkReport {
  std::vector<LinkRow> rows;
  // Seconds of a launch that copies so many experts, by the number of CTAs.
  struct Launch {
    int ctas = 0, experts = 0;
    double seconds = 0;
  };
  std::vector<Launch> launches;
  bool kernels = true;  // false: the GPU is older than the kernel
};

// Throws kResource when host memory or GPU memory is too small, kBadInput when bytes have arrived
// elsewhere or changed.
LinkReport measure_link(Device& device, const LinkOptions& options);

}  // namespace dsv4
