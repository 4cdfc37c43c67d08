// Opens a device and moves a model to it.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsv4/comm/launched_rank.h"
#include "dsv4/model/model.h"

namespace dsv4 {

struct ExpertMemory;  // expert_memory.h

// "cpu" (null), "cuda" or "cuda:1"; "auto" is default_device(). Throws kBadInput for other names
// and kUnsupported when this build, this machine or this GPU cannot do it.
std::shared_ptr<Device> open_device(const std::string& name);
// One for each rank of a model, of a list with commas: GPUs of one kind, some of them perhaps
// several times (for tests), or "cpu,cpu" (null once). Of "processes", "processes:2,3" and
// "processes:cpu" (null) the one of this process. The first is the calling thread's current device
// afterwards. Throws as above.
using Devices = std::vector<std::shared_ptr<Device>>;
Devices open_devices(const std::string& names);
// Sets what CUDA has to know before it is used where ranks share a GPU: they wait for each other in
// kernels. A kernel that the driver loads when it is first used would wait for those, and so would
// one of a stream that shares its queue with the stream of another rank. Done here for names that
// repeat a GPU.
void prepare_shared_gpus();
// Which rank this process is for "processes..", as its environment says; none for other names.
std::optional<LaunchedRank> rank_of_process(const std::string& device);
// How many ranks there are.
int num_ranks(const std::string& device);
// The names for --gpus: a number of GPUs, "all", a list of their numbers or of "cpu", or
// "processes" of some kind.
std::string devices_of_gpus(const std::string& gpus);

// The first GPU that this build can use, "cuda" or "cuda:1"; otherwise "cpu", also where a driver
// is too old. The answer is the first call's.
const std::string& default_device();
// Whether the name is that of the CPU, undivided; "auto" may be.
bool is_cpu(const std::string& device);
// Whether the ranks that it names are all on the CPU, or the whole model.
bool on_cpu(const std::string& device);
// usable: of each GPU of a machine, in the order of their numbers.
std::string default_device(const std::vector<bool>& usable);

using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Copies every tensor that a forward step reads into one allocation on the device, in the order in
// which the step reads them. Several threads read the files straight into page-locked memory.
// Throws kResource before anything is allocated when the GPU has no room for the weights together
// with the cache that the caller is going to allocate.
//
// steps: numerics and choices of the steps that the model will run. A model that is placed for
// kExact runs with both; one that is placed for kOfficial may have experts as kernel images, which
// kExact cannot read.
// outside: experts that the GPU does not hold within these sizes stay in host memory; null: all go
// to the GPU.
void move_to_device(Model& model, std::shared_ptr<Device> device, const LoadProgress& progress,
                    int64_t cache_bytes = 0, Context steps = {.numerics = Numerics::kExact},
                    const ExpertMemory* outside = nullptr);
// Each rank of a model to its device, with what it owns and nothing else. For one rank as above.
void move_to_devices(Model& model, std::span<const std::shared_ptr<Device>> devices,
                     const LoadProgress& progress, int64_t cache_bytes = 0,
                     Context steps = {.numerics = Numerics::kExact},
                     const ExpertMemory* outside = nullptr);

}  // namespace dsv4
