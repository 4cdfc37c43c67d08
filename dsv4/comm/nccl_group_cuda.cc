#include "dsv4/comm/nccl_group.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "dsv4/base/env.h"
#include "dsv4/base/error.h"
#include "dsv4/comm/rank_team.h"
#include "dsv4/comm/threads.h"
#include "dsv4/device/error.h"

namespace dsv4 {

// The part of NCCL's interface that is used; it has not changed since 2.18.
struct NcclFunctions {
  struct UniqueId {
    char bytes[128];
  };
  // The members of version 2.18; a later library takes defaults for its own.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21800;
    int blocking = 0, cga_cluster_size = kUnset, min_ctas = kUnset, max_ctas = kUnset;
    const char* net_name = nullptr;
    int split_share = kUnset;
  };
  static constexpr int kUnset = -2147483647 - 1;
  static constexpr int kSuccess = 0, kInProgress = 7;
  static constexpr int kBytes = 1;  // ncclUint8

  int (*get_version)(int*);
  int (*get_unique_id)(UniqueId*);
  int (*init_rank)(void** comm, int world, UniqueId id, int rank, Config* config);
  int (*all_gather)(const void* send, void* receive, size_t count, int type, void* comm,
                    cudaStream_t stream);
  int (*async_error)(void* comm, int* error);
  int (*abort)(void* comm);
  const char* (*error_text)(int);
  const char* (*last_error)(void* comm);
};

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kLeastVersion = 21800;
constexpr milliseconds kBetweenLooks{50};
constexpr std::chrono::minutes kToInit{2};

void* open_library() {
  const std::string given = env("DSV4_NCCL");
  const std::string name = given.empty() ? "libnccl.so.2" : given;
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* const why = dlerror();
  fail(ErrorCode::kUnsupported,
       "--exchange nccl: no library {} ({}): install libnccl2, or the PyPI wheel nvidia-nccl-cu13 "
       "and set DSV4_NCCL to its libnccl.so.2",
       name, why == nullptr ? "unknown" : why);
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    fail(ErrorCode::kUnsupported, "--exchange nccl: the library has no {}", name);
}

NcclFunctions load() {
  // Multicast in NVSwitches fails on hosts that are not set up for it; a user's own value stays.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  // All connections are made at the start, and none in the middle of a captured step.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  void* const library = open_library();
  NcclFunctions f{};
  find(library, "ncclGetVersion", f.get_version);
  find(library, "ncclGetUniqueId", f.get_unique_id);
  find(library, "ncclCommInitRankConfig", f.init_rank);
  find(library, "ncclAllGather", f.all_gather);
  find(library, "ncclCommGetAsyncError", f.async_error);
  find(library, "ncclCommAbort", f.abort);
  find(library, "ncclGetErrorString", f.error_text);
  find(library, "ncclGetLastError", f.last_error);
  int version = 0;
  f.get_version(&version);
  if (version < kLeastVersion)
    fail(ErrorCode::kUnsupported, "--exchange nccl: NCCL {}.{}.{}, want at least 2.18",
         version / 10000, version / 100 % 100, version % 100);
  return f;
}

const NcclFunctions& functions() {
  static const NcclFunctions loaded = load();
  return loaded;
}

}  // namespace

NcclGroup::NcclGroup(ShardId id, milliseconds limit, const Swap& swap,
                     std::function<void(const std::string& why)> late)
    : nccl_(functions()), id_(id), limit_(limit), late_(std::move(late)) {
  NcclFunctions::UniqueId unique{};
  if (id.rank == 0) check(nccl_.get_unique_id(&unique), "ncclGetUniqueId");
  const std::vector<Bytes> all = swap(MessageWriter().put(unique).bytes());
  unique = MessageReader(all.front()).get<NcclFunctions::UniqueId>();
  NcclFunctions::Config config;
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaEventCreateWithFlags(&marked_, cudaEventDisableTiming), "cudaEventCreate");
  const int result = nccl_.init_rank(&comm_, id.world, unique, id.rank, &config);
  try {
    if (result != NcclFunctions::kInProgress) check(result, "ncclCommInitRankConfig");
    wait_until_ready("ncclCommInitRankConfig");
  } catch (...) {
    abort();
    cudaEventDestroy(marked_);
    throw;
  }
  thread_ = std::thread([this, device] {
    cudaSetDevice(device);  // else its first call makes a context on GPU 0, which is another rank's
    watch();
  });
}

NcclGroup::~NcclGroup() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (void* const comm = take_comm(); comm != nullptr) nccl_.abort(comm);
  cudaEventDestroy(marked_);
}

void NcclGroup::check(int result, const char* call) const {
  if (result == NcclFunctions::kSuccess) return;
  std::string why = nccl_.error_text(result);
  if (const char* const last = nccl_.last_error(comm_); last != nullptr && *last != '\0')
    why += fmt::format(": {}", last);
  for (char& c : why)
    if (c == '\n') c = ' ';
  fail(ErrorCode::kUnsupported, "{}: {}", call, why);
}

// A communicator that does not block says later whether a call has succeeded.
void NcclGroup::wait_until_ready(const char* call) {
  const auto deadline = Clock::now() + kToInit;
  for (;;) {
    int state = NcclFunctions::kSuccess;
    check(nccl_.async_error(comm_, &state), "ncclCommGetAsyncError");
    if (state != NcclFunctions::kInProgress) return check(state, call);
    if (aborted_) throw RanksStopped("the ranks were stopped");
    if (Clock::now() > deadline) fail(ErrorCode::kUnsupported, "{}: no end within 2 minutes", call);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void NcclGroup::all_gather(unsigned char* slots, int64_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(calls_);
  if (aborted_) throw RanksStopped("the ranks were stopped");
  const int result = nccl_.all_gather(slots + id_.rank * bytes, slots, static_cast<size_t>(bytes),
                                      NcclFunctions::kBytes, comm_, stream);
  if (result != NcclFunctions::kInProgress) return check(result, "ncclAllGather");
  wait_until_ready("ncclAllGather");
}

void NcclGroup::mark(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  cuda_check(cudaEventRecord(marked_, stream), "cudaEventRecord");
  pending_ = true;
  since_ = Clock::now();
  changed_.notify_all();
}

// Empty: all is well so far. Called with mutex_.
std::string NcclGroup::failure() {
  if (cudaEventQuery(marked_) != cudaErrorNotReady) pending_ = false;
  if (!pending_) return {};
  const milliseconds limit = limit_;
  if (Clock::now() - since_ > limit)
    return fmt::format("no answer from another rank for {} s (NCCL)",
                       static_cast<double>(limit.count()) / 1000);
  int state = NcclFunctions::kSuccess;
  const std::unique_lock calls(calls_, std::try_to_lock);
  if (calls && !aborted_ && nccl_.async_error(comm_, &state) == NcclFunctions::kSuccess &&
      state != NcclFunctions::kSuccess && state != NcclFunctions::kInProgress)
    return fmt::format("NCCL: {}", nccl_.error_text(state));
  return {};
}

void NcclGroup::watch() {
  // Queries of an event are allowed while another thread captures.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return pending_ || stopping_; });
    if (stopping_) return;
    const std::string why = failure();
    if (!why.empty()) {
      lock.unlock();
      return late_(why);
    }
    changed_.wait_for(lock, kBetweenLooks, [&] { return stopping_; });
  }
}

void* NcclGroup::take_comm() {
  aborted_ = true;
  const std::lock_guard lock(calls_);
  return std::exchange(comm_, nullptr);
}

// NCCL lets its kernels end at once, and then may wait for graphs that hold some of them, or for a
// GPU that has failed, so nothing waits for this call.
void NcclGroup::abort() noexcept {
  void* const comm = take_comm();
  if (comm == nullptr) return;
  set_rank_lost();
  std::thread(nccl_.abort, comm).detach();
}

}  // namespace dsv4
