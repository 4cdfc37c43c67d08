// dsv4_bench_micro: the micro-benchmarks that decide how prefill is built (docs/prefill.md and
// the heads of the files here).
//
//   dsv4_bench_micro              all parts, each a process of its own with a time limit; one JSON
//                                 object on stdout
//   dsv4_bench_micro PART ...     these parts alone (kParts); one part runs in this process and
//                                 prints its lines

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
                           {"sustained", sustained},
                           {"feed_f16", [] { feed_f16(false); }},
                           {"feed_promoted", [] { feed_promoted(false); }},
                           {"feed_token", [] { feed_token(false); }},
                           {"feed_f16_clusters", [] { feed_f16(true); }},
                           {"feed_promoted_clusters", [] { feed_promoted(true); }},
                           {"feed_token_clusters", [] { feed_token(true); }},
                           {"index_forms", index_forms}};

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
  const std::string command = "timeout -s KILL 150 '" + program + "' " + part;
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

// The parts of the command line, or all; a part alone runs in this process, as lines.
int run_parts(int count, char** names) {
  char program[4096] = {};
  if (readlink("/proc/self/exe", program, sizeof(program) - 1) <= 0) return 2;
  bool good = true, first = true;
  std::printf("{\"benchmark\": \"dsv4_bench_micro\", \"results\": [\n");
  std::fflush(stdout);
  good = run_apart(program, "device", first);
  for (const Part& part : kParts) {
    bool wanted = count == 0;
    for (int i = 0; i < count; ++i) wanted = wanted || std::strcmp(names[i], part.name) == 0;
    if (wanted) good = run_apart(program, part.name, first) && good;
  }
  std::printf("\n]}\n");
  return good ? 0 : 1;
}

bool known(const char* name) {
  for (const Part& part : kParts)
    if (std::strcmp(name, part.name) == 0) return true;
  std::fprintf(stderr, "no part %s: it is one of", name);
  for (const Part& part : kParts) std::fprintf(stderr, " %s", part.name);
  std::fprintf(stderr, "\n");
  return false;
}

}  // namespace
}  // namespace dsv4::micro

int main(int count, char** arguments) {
  using namespace dsv4::micro;
  if (count == 2 && std::strcmp(arguments[1], "device") == 0) {
    print_device();
    return 0;
  }
  for (int i = 1; i < count; ++i)
    if (!known(arguments[i])) return 2;
  if (count != 2) return run_parts(count - 1, arguments + 1);
  for (const Part& part : kParts)
    if (std::strcmp(arguments[1], part.name) == 0) part.run();
  return 0;
}
