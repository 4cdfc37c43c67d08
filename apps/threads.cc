#include "apps/threads.h"

#include <omp.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "apps/common.h"
#include "dsv4/base/cpu_count.h"
#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

constexpr int kMaxThreads = 4096;

// Rounds of spinning before a waiting thread sleeps, some ten nanoseconds each; the library's own
// default is 300000. Measured with tools/measure_threads.py.
constexpr const char* kSpinCount = "1000";

const char* bad_num_threads = nullptr;

// A list of numbers, one per nesting level, as OpenMP defines it.
bool is_thread_list(const char* text) {
  for (const char* c = text; *c != '\0'; ++c) {
    if ((*c < '0' || *c > '9') && *c != ',' && *c != ' ') return false;
  }
  return std::atoi(text) >= 1;
}

// libgomp reads its environment in a constructor of default priority. It is linked statically
// (cmake/dependencies.cmake), so a constructor of this program with a higher priority runs before;
// setenv() in main() would be too late. A value that libgomp would complain about in its own words
// is removed here and reported by set_default_threads().
__attribute__((constructor(101))) void prepare_openmp() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", kSpinCount, 0);
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (threads == nullptr || is_thread_list(threads)) return;
  if (*threads != '\0') bad_num_threads = strdup(threads);
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace

void set_default_threads() {
  if (bad_num_threads != nullptr)
    fail(ErrorCode::kBadInput, "OMP_NUM_THREADS is '{}': want a number of threads, 1 or more",
         quotable(bad_num_threads));
  if (env("OMP_NUM_THREADS").empty()) omp_set_num_threads(usable_cpus().threads());
}

void add_threads(CLI::App& command) {
  command
      .add_option_function<int>(
          "-t,--threads", [](const int& threads) { omp_set_num_threads(threads); },
          "CPU threads (default: the CPUs that this process may use)")
      ->check(integer_in(1, kMaxThreads))
      ->option_text("N");
}

int num_threads() {
  return omp_get_max_threads();
}

void use_threads(int number) {
  omp_set_num_threads(number);
}

std::string threads_text() {
  const CpuCount cpus = usable_cpus();
  return fmt::format("{}: {} in the affinity mask, {}", num_threads(),
                     cpus.allowed == 1 ? "1 CPU" : fmt::format("{} CPUs", cpus.allowed),
                     cpus.quota ? fmt::format("quota of {:.3g} CPUs", *cpus.quota) : "no quota");
}

nlohmann::ordered_json threads_json() {
  const CpuCount cpus = usable_cpus();
  return {{"number", num_threads()},
          {"allowed_cpus", cpus.allowed},
          {"quota_cpus", cpus.quota ? nlohmann::ordered_json(*cpus.quota) : nullptr}};
}

}  // namespace dsv4::apps
