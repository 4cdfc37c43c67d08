#include "dsv4/base/env.h"

#include <cstdlib>
#include <cstring>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr EnvVar kTable[] = {
    {"DSV4_API_KEY", "no key",
     "key that clients of `dsv4 serve` must send, and that `dsv4 chat --url` sends"},
    {"DSV4_MODELS", "models/ beside the build tree, or share/dsv4/models/ of the installation",
     "folder that holds the bundled models (demo)"},
    {"DSV4_NO_EARLY", "kernels start before the previous one has ended, where the GPU can",
     "any value: each kernel starts after the previous one (no programmatic dependent launch)"},
    {"DSV4_PROGRESS_S", "10",
     "seconds between lines of progress where standard error is no terminal; 0: every update"},
    {"GOMP_SPINCOUNT", "about ten microseconds",
     "rounds that a waiting thread spins before it sleeps (read by GCC's OpenMP)"},
    {"HF_HOME", "~/.cache/huggingface",
     "folder of Hugging Face, whose hub/ may hold a model that is named ORG/NAME"},
    {"HF_HUB_CACHE", "HF_HOME/hub", "the hub's cache itself"},
    {"HOME", "no cache of Hugging Face", "where HF_HOME is by default"},
    {"OMP_NUM_THREADS", "the CPUs of the affinity mask, at most the quota of the control group",
     "threads of the CPU implementations; --threads comes before it (read by OpenMP)"},
    {"OMP_WAIT_POLICY", "as GOMP_SPINCOUNT",
     "active: waiting threads spin for minutes; passive: they sleep at once (read by OpenMP)"},
    {"TERM", "no control sequences", "the kind of terminal that `dsv4 chat` writes to"},
};

}  // namespace

std::span<const EnvVar> env_table() {
  return kTable;
}

std::string env(const char* name) {
  for (const EnvVar& variable : kTable) {
    if (std::strcmp(variable.name, name) != 0) continue;
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  }
  fail(ErrorCode::kInvalidArgument, "environment variable {} is not in the table", name);
}

}  // namespace dsv4
