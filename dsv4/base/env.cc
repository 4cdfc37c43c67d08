#include "dsv4/base/env.h"

#include <cstdlib>
#include <cstring>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr EnvVar kTable[] = {
    {"ALL_PROXY", "none",
     "proxy for `dsv4 pull` where no other is set; also in lower case (read by libcurl)", true},
    {"CUDA_VISIBLE_DEVICES", "all GPUs", "GPUs that there are for the program (read by CUDA)"},
    {"DSV4_API_KEY", "no key",
     "key that clients of `dsv4 serve` must send, and that `dsv4 chat --url` sends", true},
    {"DSV4_MODELS", "models/ beside the build tree, or share/dsv4/models/ of the installation",
     "folder that holds the bundled models (demo)"},
    {"DSV4_NCCL", "libnccl.so.2, where the system finds libraries",
     "path of NCCL's library for --exchange nccl"},
    {"DSV4_NO_EARLY", "kernels start before the previous one has ended, where the GPU can",
     "any value: each kernel starts after the previous one (no programmatic dependent launch)"},
    {"DSV4_PROGRESS_S", "10",
     "seconds between lines of progress where standard error is no terminal; 0: every update"},
    {"DSV4_RANKS_WAIT_S", "60",
     "seconds that ranks that are processes wait for each other at the start"},
    {"GOMP_SPINCOUNT", "about ten microseconds",
     "rounds that a waiting thread spins before it sleeps (read by GCC's OpenMP)"},
    {"HF_ENDPOINT", "https://huggingface.co", "address of the hub, or of a mirror"},
    {"HF_HOME", "huggingface/ in XDG_CACHE_HOME",
     "folder of Hugging Face, whose hub/ holds the models that are named ORG/NAME"},
    {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE, or HF_HOME/hub", "the hub's cache itself"},
    {"HF_HUB_OFFLINE", "the network is used", "1, true, yes or on: nothing is fetched"},
    {"HF_TOKEN", "the file HF_TOKEN_PATH", "token for models that are not public", true},
    {"HF_TOKEN_PATH", "HF_HOME/token", "file that holds the token"},
    {"HOME", "no cache of Hugging Face", "where XDG_CACHE_HOME is by default"},
    {"HTTPS_PROXY", "ALL_PROXY", "proxy for https; also in lower case (read by libcurl)", true},
    {"HUGGINGFACE_HUB_CACHE", "HF_HOME/hub", "older name of HF_HUB_CACHE"},
    {"LOCAL_RANK", "RANK", "which GPU of this host a rank takes (set by torchrun)"},
    {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "ranks on this host (set by torchrun)"},
    {"MASTER_ADDR", "none",
     "with MASTER_PORT the name of a job whose ranks are processes (set by torchrun)"},
    {"MASTER_PORT", "none", "see MASTER_ADDR; no port is used"},
    {"NO_PROXY", "no hosts",
     "hosts that are reached without a proxy; also in lower case (read by libcurl)"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK",
     "as LOCAL_RANK (set by Open MPI's mpirun)"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE", "as LOCAL_WORLD_SIZE (set by mpirun)"},
    {"OMPI_COMM_WORLD_RANK", "no rank", "as RANK (set by mpirun)"},
    {"OMPI_COMM_WORLD_SIZE", "no rank", "as WORLD_SIZE (set by mpirun)"},
    {"OMPI_MCA_ess_base_jobid", "none", "differs from job to job (set by mpirun)"},
    {"OMP_NUM_THREADS", "the CPUs of the affinity mask, at most the quota of the control group",
     "threads of the CPU implementations; --threads comes before it (read by OpenMP)"},
    {"OMP_WAIT_POLICY", "as GOMP_SPINCOUNT",
     "active: waiting threads spin for minutes; passive: they sleep at once (read by OpenMP)"},
    {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512", "requests in one export of traces"},
    {"OTEL_BSP_MAX_QUEUE_SIZE", "2048", "requests that wait for it; more are dropped"},
    {"OTEL_BSP_SCHEDULE_DELAY", "5000", "milliseconds between exports"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT", "no traces",
     "collector of OpenTelemetry that gets the traces of `dsv4 serve`: http://HOST:4318"},
    {"OTEL_EXPORTER_OTLP_HEADERS", "none", "headers for it: key=value,key=value", true},
    {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/json, the only one here"},
    {"OTEL_EXPORTER_OTLP_TIMEOUT", "10000", "milliseconds that an export may take"},
    {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT/v1/traces",
     "the whole URL, path included"},
    {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS", "instead of them", true},
    {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL", "instead of it"},
    {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT", "instead of it"},
    {"OTEL_RESOURCE_ATTRIBUTES", "none", "attributes of the server in traces: key=value,..."},
    {"OTEL_SDK_DISABLED", "false", "true: no traces"},
    {"OTEL_SERVICE_NAME", "dsv4", "name of the server in traces"},
    {"OTEL_TRACES_EXPORTER", "otlp", "none: no traces"},
    {"OTEL_TRACES_SAMPLER", "parentbased_always_on",
     "which requests are traced: always_on, always_off, traceidratio, also after parentbased_"},
    {"OTEL_TRACES_SAMPLER_ARG", "1", "the share of them that traceidratio traces"},
    {"PMIX_NAMESPACE", "none", "differs from job to job (set by mpirun)"},
    {"RANK", "no rank", "which rank of `--gpus processes` this process is (set by torchrun)"},
    {"SLURM_JOB_ID", "none", "differs from job to job (set by srun)"},
    {"SLURM_LOCALID", "SLURM_PROCID", "as LOCAL_RANK (set by srun)"},
    {"SLURM_NNODES", "1", "hosts of a job, which has to be one (set by srun)"},
    {"SLURM_NTASKS", "no rank", "as WORLD_SIZE (set by srun)"},
    {"SLURM_PROCID", "no rank", "as RANK (set by srun)"},
    {"SLURM_STEP_ID", "none", "differs from job to job (set by srun)"},
    {"SSL_CERT_FILE", "the system's certificates",
     "certificates of the authorities that `dsv4 pull` trusts"},
    {"TERM", "no control sequences", "the kind of terminal that `dsv4 chat` writes to"},
    {"TORCHELASTIC_RUN_ID", "none", "differs from job to job (set by torchrun)"},
    {"WORLD_SIZE", "no rank", "how many ranks there are (set by torchrun)"},
    {"XDG_CACHE_HOME", "~/.cache", "folder of caches, where HF_HOME is by default"},
    {"http_proxy", "ALL_PROXY", "proxy for http (read by libcurl)", true},
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
