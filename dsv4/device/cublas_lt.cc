#include "dsv4/device/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

// What cuBLASLt may use beside its operands; the figure that NVIDIA names for Hopper.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

// A pointer with the alignment of a buffer.
const void* const kSomeAddress = reinterpret_cast<const void*>(uintptr_t{256});

// The functions that are called, found by name.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  bool complete = true;

  Library() {
    void* file = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    // The toolkit's default path, if the loader's search path does not have it.
    if (file == nullptr) file = dlopen("/usr/local/cuda/lib64/libcublasLt.so.13", RTLD_NOW);
    find(file, "cublasLtCreate", &create);
    find(file, "cublasLtMatmul", &matmul);
    find(file, "cublasLtMatmulAlgoGetHeuristic", &heuristic);
    find(file, "cublasLtMatmulDescCreate", &desc_create);
    find(file, "cublasLtMatmulDescSetAttribute", &desc_set);
    find(file, "cublasLtMatrixLayoutCreate", &layout_create);
    find(file, "cublasLtMatmulPreferenceCreate", &preference_create);
    find(file, "cublasLtMatmulPreferenceSetAttribute", &preference_set);
    find(file, "cublasLtMatmulPreferenceDestroy", &preference_destroy);
  }

 private:
  template <class Function>
  void find(void* file, const char* name, Function* function) {
    if (file != nullptr) *function = reinterpret_cast<Function>(dlsym(file, name));
    complete = complete && *function != nullptr;
  }
};

const Library& library() {
  static const Library lib;
  return lib;
}

void lt_check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(ErrorCode::kUnsupported, "{}: cuBLAS status {}", what, static_cast<int>(status));
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kE4M3:
      return CUDA_R_8F_E4M3;
    default:
      fail(ErrorCode::kUnsupported, "cuBLASLt on {}", name(dtype));
  }
}

template <class Value>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  lt_check(library().desc_set(desc, attribute, &value, sizeof(value)), "cublasLtMatmulDesc");
}

// A product in cuBLAS's terms. Its matrices are column-major, so that our rows are its columns:
// D [n, t] = A^T [n, k] B [k, t] with A = weight, B = x. The handles live as long as the program.
struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;

  Plan(cublasLtHandle_t handle, const LtShape& shape) {
    const Library& lib = library();
    lt_check(lib.desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (shape.operands == DType::kE4M3) {
      set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
      set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
      // Without some address it finds no algorithm; it is not read, and every call sets its own.
      set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, kSomeAddress);
      set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, kSomeAddress);
    }
    a = layout(shape.operands, shape.k, shape.n, shape.weight_stride);
    b = layout(shape.operands, shape.k, shape.t, shape.x_stride);
    d = layout(shape.out, shape.n, shape.t, shape.out_stride);
    ask(handle);
  }

 private:
  static cublasLtMatrixLayout_t layout(DType dtype, int64_t rows, int64_t columns, int64_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    lt_check(library().layout_create(&made, type_of(dtype), static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(columns), stride),
             "cublasLtMatrixLayoutCreate");
    return made;
  }

  void ask(cublasLtHandle_t handle) {
    const Library& lib = library();
    cublasLtMatmulPreference_t preference = nullptr;
    lt_check(lib.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    const auto bytes = static_cast<size_t>(kWorkspaceBytes);
    lt_check(lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                sizeof(bytes)),
             "cublasLtMatmulPreference");
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        lib.heuristic(handle, desc, a, b, d, d, preference, 1, &result, &count);
    lib.preference_destroy(preference);
    found = status == CUBLAS_STATUS_SUCCESS && count > 0;
    algorithm = result.algo;
  }
};

// Handles of all devices and plans of all shapes, made when first asked for.
class Plans {
 public:
  cublasLtHandle_t handle(int ordinal) {
    const std::lock_guard lock(mutex_);
    return handle_locked(ordinal);
  }
  const Plan& plan(int ordinal, const LtShape& shape) {
    const std::lock_guard lock(mutex_);
    const auto key = std::pair(ordinal, shape);
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    return plans_.try_emplace(key, handle_locked(ordinal), shape).first->second;
  }

 private:
  cublasLtHandle_t handle_locked(int ordinal) {
    cublasLtHandle_t& handle = handles_[ordinal];
    if (handle == nullptr) lt_check(library().create(&handle), "cublasLtCreate");
    return handle;
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<std::pair<int, LtShape>, Plan> plans_;
};

Plans& plans() {
  static Plans all;
  return all;
}

std::atomic<bool> refused = false;

}  // namespace

void lt_refuse_all() {
  refused = true;
}

// A dry run has no GPU to ask: it counts as one that has an algorithm.
const char* lt_reject(Device& device, const LtShape& shape) {
  if (refused) return "ranks share a GPU, and loading its kernels would wait for another rank";
  if (device.is_dry_run()) return nullptr;
  if (!library().complete) return "libcublasLt.so.13 is not installed";
  return plans().plan(device.info().ordinal, shape).found ? nullptr
                                                          : "cuBLASLt has no algorithm for it";
}

void lt_prepare(Device& device) {
  if (refused || device.is_dry_run() || !library().complete) return;
  constexpr int64_t kSide = 512;
  Scratch& scratch = device.workspace();
  for (const DType operands : {DType::kBF16, DType::kE4M3}) {
    const LtShape shape{.t = kSide,
                        .n = kSide,
                        .k = kSide,
                        .x_stride = kSide,
                        .weight_stride = kSide,
                        .out_stride = kSide,
                        .operands = operands,
                        .out = DType::kBF16};
    if (lt_reject(device, shape) != nullptr) continue;
    const Scratch::Scope scope(scratch);
    const TensorView matrix = scratch.take(operands, {kSide, kSide}),
                     out = scratch.take(DType::kBF16, {kSide, kSide}),
                     scales = scratch.take(DType::kF32, {kSide, kSide});
    lt_matmul(device, shape,
              {.x = matrix.data,
               .weight = matrix.data,
               .out = out.data,
               .x_scale = scales.as<float>(),
               .weight_scale = scales.as<float>()});
  }
  device.wait();
}

void lt_matmul(Device& device, const LtShape& shape, const LtPointers& pointers) {
  const Scratch::Scope scope(device.workspace());
  const TensorView workspace = device.workspace().take(DType::kU8, {kWorkspaceBytes});
  if (device.is_dry_run()) return;
  const int ordinal = device.info().ordinal;
  const Plan& plan = plans().plan(ordinal, shape);
  if (shape.operands == DType::kE4M3) {
    set(plan.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.weight_scale);
    set(plan.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.x_scale);
  }
  const float one = 1, zero = 0;
  lt_check(library().matmul(plans().handle(ordinal), plan.desc, &one, pointers.weight, plan.a,
                            pointers.x, plan.b, &zero, pointers.out, plan.d, pointers.out, plan.d,
                            &plan.algorithm, workspace.data, static_cast<size_t>(kWorkspaceBytes),
                            device.stream()),
           "cublasLtMatmul");
}

}  // namespace dsv4
