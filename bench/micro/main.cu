// dsv4_bench_micro: the six micro-benchmarks that decide how prefill is built (docs/prefill.md and
// the heads of the files here).
//
//   dsv4_bench_micro              all parts, each a process of its own with a time limit; one JSON
//                                 object on stdout
//   dsv4_bench_micro PART         rs_f16 | sustained | rs_e4m3 | index_tile | post_mix, as lines

#include <unistd.h>

#include <cstring>

#include "bench/micro/micro.h"

namespace dsv4::micro {
namespace {

struct Part {
  const char* name;
  void (*run)();
};
constexpr Part kParts[] = {{"rs_f16", rs_f16},
                           {"rs_e4m3", rs_e4m3},
                           {"index_tile", index_tile},
                           {"post_mix", post_mix},
                           {"sustained", sustained}};

void print_device() {
  cudaDeviceProp device;
  int mhz = 0;
  MICRO_CUDA(cudaGetDeviceProperties(&device, 0));
  MICRO_CUDA(cudaDeviceGetAttribute(&mhz, cudaDevAttrClockRate, 0));
  std::printf("{\"part\": \"device\", \"name\": \"%s\", \"sms\": %d, \"clock_mhz\": %d}\n",
              device.name, device.multiProcessorCount, mhz / 1000);
}

// The lines of one part; a part that dies leaves those it had and a line about it.
bool run_apart(const std::string& program, const char* part, bool& first) {
  const std::string command = "timeout -s KILL 120 '" + program + "' " + part;
  FILE* lines = popen(command.c_str(), "r");
  if (lines == nullptr) return false;
  char line[4096];
  while (std::fgets(line, sizeof(line), lines) != nullptr) {
    line[std::strcspn(line, "\n")] = 0;
    if (line[0] != '{') continue;
    std::printf("%s  %s", first ? "" : ",\n", line);
    first = false;
  }
  const int status = pclose(lines);
  if (status != 0)
    std::printf("%s  {\"part\": \"%s\", \"error\": \"status %d\"}", first ? "" : ",\n", part,
                status);
  first = first && status == 0;
  std::fflush(stdout);
  return status == 0;
}

int run_all() {
  char program[4096] = {};
  if (readlink("/proc/self/exe", program, sizeof(program) - 1) <= 0) return 2;
  bool good = true, first = true;
  std::printf("{\"benchmark\": \"dsv4_bench_micro\", \"results\": [\n");
  std::fflush(stdout);
  good = run_apart(program, "device", first);
  for (const Part& part : kParts) good = run_apart(program, part.name, first) && good;
  std::printf("\n]}\n");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace dsv4::micro

int main(int count, char** arguments) {
  using namespace dsv4::micro;
  if (count == 1) return run_all();
  if (std::strcmp(arguments[1], "device") == 0) {
    print_device();
    return 0;
  }
  for (const Part& part : kParts) {
    if (std::strcmp(arguments[1], part.name) == 0) {
      part.run();
      return 0;
    }
  }
  std::fprintf(stderr, "no part %s: rs_f16, rs_e4m3, index_tile, post_mix, sustained\n",
               arguments[1]);
  return 2;
}
