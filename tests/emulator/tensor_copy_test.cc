// Tensor copies on the emulator: boxes of 1 to 4 axes, swizzles, elements outside the tensor,
// multicast, stores, and the rules that it checks.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/formats/float16.h"
#include "tests/emulator/expect_error.h"
#include "tests/emulator/tensor_map.h"

namespace dsv4 {
namespace {

using emulator::expect_error;
using emulator::expect_error_of;
using emulator::Kernel;
using emulator::Launch;

constexpr uint32_t kBase = 1024;

struct alignas(16) Aligned {
  uint8_t bytes[16];
};

// A dense tensor of random bytes whose axis 0 is padded to a multiple of 16 bytes.
struct Tensor {
  std::vector<Aligned> memory;
  TmaBox box;

  Tensor(DType dtype, const std::vector<int64_t>& size, const std::vector<int64_t>& extent,
         TmaSwizzle swizzle, Rng& rng) {
    box.dtype = dtype;
    box.rank = static_cast<int>(size.size());
    box.swizzle = swizzle;
    int64_t bytes = (size[0] * item_bytes(dtype) + 15) / 16 * 16;
    for (size_t i = 0; i < size.size(); ++i) {
      box.size[i] = size[i], box.box[i] = extent[i];
      if (i > 0) box.stride[i] = bytes, bytes *= size[i];
    }
    memory.resize(static_cast<size_t>(bytes / 16));
    box.base = memory.data();
    for (Aligned& some : memory) {
      for (uint8_t& byte : some.bytes) byte = static_cast<uint8_t>(rng.below(256));
    }
  }
  uint8_t* at(const std::array<int64_t, 5>& c) const {
    int64_t offset = c[0] * item_bytes(box.dtype);
    for (size_t i = 1; i < static_cast<size_t>(box.rank); ++i) offset += c[i] * box.stride[i];
    return static_cast<uint8_t*>(const_cast<void*>(box.base)) + offset;
  }
  bool has(const std::array<int64_t, 5>& c) const {
    for (size_t i = 0; i < static_cast<size_t>(box.rank); ++i) {
      if (c[i] < 0 || c[i] >= box.size[i]) return false;
    }
    return true;
  }
  int64_t box_bytes() const {
    int64_t bytes = item_bytes(box.dtype);
    for (size_t i = 0; i < static_cast<size_t>(box.rank); ++i) bytes *= box.box[i];
    return bytes;
  }
};

// Byte `flat` of a dense box is at this offset: the 16-byte chunk c of a row of `span` bytes is
// exchanged with chunk c ^ (line % chunks), line counting 128 bytes.
int64_t swizzled(int64_t flat, TmaSwizzle swizzle) {
  if (swizzle == TmaSwizzle::kNone) return flat;
  const int64_t span = swizzle == TmaSwizzle::k32 ? 32 : (swizzle == TmaSwizzle::k64 ? 64 : 128);
  const int64_t chunk = flat % span / 16, line = flat / 128;
  return flat - chunk * 16 + (chunk ^ line % (span / 16)) * 16;
}

void load(uint32_t to, const CUtensorMap& map, ptx::Mbarrier& full, int rank,
          const std::array<int32_t, 4>& c) {
  if (rank == 1) ptx::cp_async_bulk_tensor_1d(to, &map, full, c[0]);
  if (rank == 2) ptx::cp_async_bulk_tensor_2d(to, &map, full, c[0], c[1]);
  if (rank == 3) ptx::cp_async_bulk_tensor_3d(to, &map, full, c[0], c[1], c[2]);
  if (rank == 4) ptx::cp_async_bulk_tensor_4d(to, &map, full, c[0], c[1], c[2], c[3]);
}
void store(const CUtensorMap& map, uint32_t from, int rank, const std::array<int32_t, 4>& c) {
  if (rank == 1) ptx::cp_async_bulk_tensor_1d_store(&map, from, c[0]);
  if (rank == 2) ptx::cp_async_bulk_tensor_2d_store(&map, from, c[0], c[1]);
  if (rank == 3) ptx::cp_async_bulk_tensor_3d_store(&map, from, c[0], c[1], c[2]);
  if (rank == 4) ptx::cp_async_bulk_tensor_4d_store(&map, from, c[0], c[1], c[2], c[3]);
}

// The box of `tensor` at c, loaded to shared memory.
std::vector<uint8_t> load_box(const Tensor& tensor, const std::array<int32_t, 4>& c,
                              uint64_t seed) {
  const CUtensorMap map = emulator::make_tma_map(tensor.box);
  const auto bytes = static_cast<size_t>(tensor.box_bytes());
  std::vector<uint8_t> got(bytes);
  emulator::launch({.shared = bytes + 8, .seed = seed}, [&] {
    unsigned char* memory = ptx::dynamic_smem();
    auto& full = *reinterpret_cast<ptx::Mbarrier*>(memory + bytes);
    if (threadIdx.x == 0) full.init(1);
    __syncthreads();
    if (threadIdx.x == 0) {
      full.expect_tx(static_cast<uint32_t>(bytes));
      load(kBase, map, full, tensor.box.rank, c);
      full.arrive();
    }
    full.wait(0);
    if (threadIdx.x == 1) std::copy_n(memory, bytes, got.data());
  });
  return got;
}

// Calls element(dense offset, coordinates) for each element of the box at c.
template <class Element>
void for_each_element(const TmaBox& box, const std::array<int32_t, 4>& c, const Element& element) {
  std::array<int64_t, 5> extent{1, 1, 1, 1, 1};
  for (size_t i = 0; i < static_cast<size_t>(box.rank); ++i) extent[i] = box.box[i];
  int64_t flat = 0;
  for (int64_t w = 0; w < extent[3]; ++w)
    for (int64_t z = 0; z < extent[2]; ++z)
      for (int64_t y = 0; y < extent[1]; ++y)
        for (int64_t x = 0; x < extent[0]; ++x, flat += item_bytes(box.dtype))
          element(flat, std::array<int64_t, 5>{c[0] + x, c[1] + y, c[2] + z, c[3] + w, 0});
}

struct BoxCase {
  DType dtype;
  std::vector<int64_t> size, box;
  TmaSwizzle swizzle;
};
const BoxCase kBoxes[] = {
    {DType::kF32, {100}, {32}, TmaSwizzle::kNone},
    {DType::kBF16, {70, 37}, {64, 16}, TmaSwizzle::k128},
    {DType::kBF16, {70, 37}, {32, 16}, TmaSwizzle::k64},
    {DType::kBF16, {33, 37}, {16, 16}, TmaSwizzle::k32},
    {DType::kE4M3, {200, 9, 5}, {128, 8, 2}, TmaSwizzle::k128},
    {DType::kU8, {50, 7, 3}, {48, 4, 2}, TmaSwizzle::kNone},
    {DType::kF32, {40, 5, 4, 3}, {8, 3, 2, 2}, TmaSwizzle::k32},
};

TEST(EmulatorTensorCopy, LoadsOfOneToFourAxes) {
  Rng rng(1);
  for (const BoxCase& test : kBoxes) {
    const Tensor tensor(test.dtype, test.size, test.box, test.swizzle, rng);
    const auto item = static_cast<size_t>(item_bytes(test.dtype));
    for (uint64_t seed = 0; seed < 8; ++seed) {
      std::array<int32_t, 4> c{};  // also outside, on both sides
      for (size_t i = 0; i < test.size.size(); ++i)
        c[i] = static_cast<int32_t>(rng.below(test.size[i] + test.box[i]) - test.box[i] / 2);
      const std::vector<uint8_t> got = load_box(tensor, c, seed);
      for_each_element(tensor.box, c, [&](int64_t flat, const std::array<int64_t, 5>& at) {
        const std::vector<uint8_t> zeros(item);
        const uint8_t* want = tensor.has(at) ? tensor.at(at) : zeros.data();
        const int64_t offset = swizzled(flat, test.swizzle);
        ASSERT_TRUE(std::equal(want, want + item, &got[static_cast<size_t>(offset)]))
            << "rank " << test.size.size() << " byte " << flat;
      });
    }
  }
}

TEST(EmulatorTensorCopy, StoresOfOneToFourAxes) {
  Rng rng(2);
  for (const BoxCase& test : kBoxes) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Tensor tensor(test.dtype, test.size, test.box, test.swizzle, rng);
      std::array<int32_t, 4> c{};
      for (size_t i = 0; i < test.size.size(); ++i)
        c[i] = static_cast<int32_t>(rng.below(test.size[i] + test.box[i]) - test.box[i] / 2);
      std::vector<uint8_t> source(static_cast<size_t>(tensor.box_bytes()));
      for (uint8_t& byte : source) byte = static_cast<uint8_t>(rng.below(256));
      std::vector<Aligned> want = tensor.memory;
      const auto item = static_cast<size_t>(item_bytes(test.dtype));
      for_each_element(tensor.box, c, [&](int64_t flat, const std::array<int64_t, 5>& at) {
        if (!tensor.has(at)) return;
        auto* bytes = reinterpret_cast<uint8_t*>(want.data());
        std::copy_n(&source[static_cast<size_t>(swizzled(flat, test.swizzle))], item,
                    bytes + (tensor.at(at) - tensor.at({})));
      });
      const CUtensorMap map = emulator::make_tma_map(tensor.box);
      emulator::launch({.shared = source.size(), .seed = seed}, [&] {
        for (size_t i = threadIdx.x; i < source.size(); i += 32) ptx::dynamic_smem()[i] = source[i];
        ptx::fence_proxy_async();
        __syncthreads();
        if (threadIdx.x > 0) return;
        store(map, kBase, tensor.box.rank, c);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read<0>();
        ptx::dynamic_smem()[0] ^= 1;  // has been read
      });
      EXPECT_EQ(std::memcmp(want.data(), tensor.memory.data(), 16 * want.size()), 0);
    }
  }
}

// c [m, n] = a [m, k] b [n, k]^T in bf16: one CTA per 64 x 32 tile, one stage.
struct Gemm {
  int m, n, k;
  CUtensorMap a, b, c;

  void operator()() const {
    unsigned char* a_tile = ptx::dynamic_smem();
    unsigned char *b_tile = a_tile + 8192, *c_tile = b_tile + 4096;
    auto& full = *reinterpret_cast<ptx::Mbarrier*>(c_tile + 4096);
    const bool leads = threadIdx.x == 0;
    const auto row = static_cast<int>(64 * blockIdx.y), column = static_cast<int>(32 * blockIdx.x);
    if (leads) full.init(1), ptx::fence_mbarrier_init();
    __syncthreads();
    float d[16] = {};
    for (int step = 0; step * 64 < k; ++step) {
      if (leads) {
        full.expect_tx(8192 + 4096);
        ptx::cp_async_bulk_tensor_2d(ptx::smem_address(a_tile), &a, full, 64 * step, row);
        ptx::cp_async_bulk_tensor_2d(ptx::smem_address(b_tile), &b, full, 64 * step, column);
        full.arrive();
      }
      full.wait(static_cast<uint32_t>(step) % 2);
      ptx::wgmma_fence();
      for (uint32_t i = 0; i < 4; ++i) {
        ptx::Wgmma<__nv_bfloat16, 32>::run(
            d, ptx::make_smem_desc_128B(ptx::smem_address(a_tile) + 32 * i),
            ptx::make_smem_desc_128B(ptx::smem_address(b_tile) + 32 * i), 1);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      __syncthreads();
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int i = 0; i < 16; ++i) {
      const int r = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
      const int flat = r * 64 + 2 * (i / 4 * 8 + lane % 4 * 2 + i % 2);
      *reinterpret_cast<uint16_t*>(c_tile + (flat ^ (flat >> 7 & 3) << 4)) = f32_to_bf16(d[i]);
    }
    ptx::fence_proxy_async();
    __syncthreads();
    if (!leads) return;
    ptx::cp_async_bulk_tensor_2d_store(&c, ptx::smem_address(c_tile), column, row);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group<0>();
  }
};

TEST(EmulatorTensorCopy, AMatrixProductFromLoadsToStores) {
  constexpr int kM = 100, kN = 50, kK = 136;
  const auto matrix = [](int rows, int columns) {
    return std::vector<Aligned>(static_cast<size_t>(rows * ((columns + 7) / 8)));
  };
  const auto map = [](std::vector<Aligned>& of, int rows, int columns, int box_rows,
                      int box_columns, TmaSwizzle swizzle) {
    return emulator::make_tma_map(tma_rows(of.data(), DType::kBF16, rows, columns,
                                           (columns + 7) / 8 * 16, box_rows, box_columns, swizzle));
  };
  const auto at = [](std::vector<Aligned>& of, int columns, int row, int column) -> uint16_t& {
    return reinterpret_cast<uint16_t*>(of.data())[row * ((columns + 7) / 8 * 8) + column];
  };
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Rng rng(seed);
    std::vector<Aligned> a = matrix(kM, kK), b = matrix(kN, kK), c = matrix(kM, kN);
    for (int k = 0; k < kK; ++k) {
      for (int m = 0; m < kM; ++m)
        at(a, kK, m, k) = f32_to_bf16(static_cast<float>(rng.below(5) - 2));
      for (int n = 0; n < kN; ++n)
        at(b, kK, n, k) = f32_to_bf16(static_cast<float>(rng.below(3) - 1));
    }
    const Gemm gemm{kM,
                    kN,
                    kK,
                    map(a, kM, kK, 64, 64, TmaSwizzle::k128),
                    map(b, kN, kK, 32, 64, TmaSwizzle::k128),
                    map(c, kM, kN, 64, 32, TmaSwizzle::k64)};
    emulator::launch({.grid = {2, 2}, .block = 128, .shared = 16400, .seed = seed}, gemm);
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < kN; ++n) {
        float want = 0;
        for (int k = 0; k < kK; ++k)
          want += bf16_to_f32(at(a, kK, m, k)) * bf16_to_f32(at(b, kK, n, k));
        ASSERT_EQ(bf16_to_f32(at(c, kN, m, n)), bf16_to_f32(f32_to_bf16(want))) << m << ' ' << n;
      }
    }
  }
}

TEST(EmulatorTensorCopy, MulticastWritesToEveryCtaOfTheMask) {
  Rng rng(3);
  const Tensor tensor(DType::kU8, {64, 8}, {32, 4}, TmaSwizzle::k32, rng);
  const CUtensorMap map = emulator::make_tma_map(tensor.box);
  Launch how{.grid = 4, .cluster = 4, .shared = 136};
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    std::vector<std::vector<uint8_t>> got(4, std::vector<uint8_t>(128));
    emulator::launch(how, [&] {
      unsigned char* memory = ptx::dynamic_smem();
      auto& full = *reinterpret_cast<ptx::Mbarrier*>(memory + 128);
      const uint32_t rank = ptx::cluster_ctarank();
      if (threadIdx.x == 0) full.init(1);
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
      if (threadIdx.x == 0 && rank == 1)
        ptx::cp_async_bulk_tensor_2d_multicast(kBase, &map, full, 0b1010, 32, 4);
      if (threadIdx.x == 0 && rank % 2 == 1) full.expect_tx(128), full.arrive();
      if (rank % 2 == 1) full.wait(0);
      if (threadIdx.x == 0) std::copy_n(memory, 128, got[rank].data());
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    });
    EXPECT_EQ(got[0], std::vector<uint8_t>(128, 0xff));
    EXPECT_EQ(got[1], got[3]);
    EXPECT_EQ(got[1], load_box(tensor, {32, 4}, 0));
  }
}

struct OneBox {
  Rng rng{4};
  Tensor tensor{DType::kU8, {64, 8}, {32, 4}, TmaSwizzle::k32, rng};
  CUtensorMap map = emulator::make_tma_map(tensor.box);
  Launch how{.shared = 264};
};

TEST(EmulatorTensorCopy, RuleViolationsOfLoads) {
  const OneBox one;
  const auto with_barrier = [&](const auto& copy) {
    return [&one, copy] {
      if (threadIdx.x > 0) return;
      auto& full = *reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem() + 256);
      full.init(1);
      copy(full);
    };
  };
  const CUtensorMap& map = one.map;
  expect_error(one.how, "not a multiple of 128", with_barrier([&](ptx::Mbarrier& full) {
                 ptx::cp_async_bulk_tensor_2d(kBase + 64, &map, full, 0, 0);
               }));
  expect_error(one.how, "outside 1024 .. 1288", with_barrier([&](ptx::Mbarrier& full) {
                 ptx::cp_async_bulk_tensor_2d(kBase + 256, &map, full, 0, 0);
               }));
  expect_error(one.how, "3 coordinates for a tensor map of rank 2",
               with_barrier([&](ptx::Mbarrier& full) {
                 ptx::cp_async_bulk_tensor_3d(kBase, &map, full, 0, 0, 0);
               }));
  const CUtensorMap empty{};
  expect_error(one.how, "not a tensor map", with_barrier([&](ptx::Mbarrier& full) {
                 ptx::cp_async_bulk_tensor_2d(kBase, &empty, full, 0, 0);
               }));
  expect_error(one.how, "a tensor copy overwrites what thread",
               with_barrier([&](ptx::Mbarrier& full) {
                 ptx::dynamic_smem()[100] = 1;
                 ptx::cp_async_bulk_tensor_2d(kBase, &map, full, 0, 0);
               }));
  TmaBox narrow = one.tensor.box;
  narrow.box[0] = 16;
  EXPECT_THROW(emulator::make_tma_map(narrow), Error);
}

TEST(EmulatorTensorCopy, RuleViolationsOfStores) {
  const OneBox one;
  const auto stores = [&](bool fence, bool commit, bool wait) {
    return [&one, fence, commit, wait] {
      ptx::dynamic_smem()[threadIdx.x] = 1;
      if (fence) ptx::fence_proxy_async();
      __syncthreads();
      if (threadIdx.x > 0) return;
      ptx::cp_async_bulk_tensor_2d_store(&one.map, kBase, 0, 0);
      if (commit) ptx::cp_async_bulk_commit_group();
      if (wait) ptx::cp_async_bulk_wait_group_read<0>();
    };
  };
  emulator::launch(one.how, stores(true, true, true));
  expect_error(one.how, "a tensor store reads what thread", stores(false, true, true));
  expect_error(one.how, "before its tensor stores have read", stores(true, true, false));
  expect_error(one.how, "before its tensor stores have read", stores(true, false, true));
}

TEST(EmulatorTensorCopy, HazardsOfDependentKernels) {
  const OneBox one;
  const Kernel first{{.shared = 128}, [&] {
                       ptx::griddepcontrol_launch_dependents();
                       if (threadIdx.x > 0) return;
                       ptx::cp_async_bulk_tensor_2d_store(&one.map, kBase, 0, 0);
                       ptx::cp_async_bulk_commit_group();
                       ptx::cp_async_bulk_wait_group_read<0>();
                     }};
  const auto second = [&](bool wait) {
    return Kernel{{.shared = 136, .pdl = true}, [&one, wait] {
                    auto& full = *reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem() + 128);
                    if (threadIdx.x == 0) full.init(1);
                    __syncthreads();
                    if (wait) ptx::griddepcontrol_wait();
                    if (threadIdx.x == 0) {
                      full.expect_tx(128);
                      ptx::cp_async_bulk_tensor_2d(kBase, &one.map, full, 31, 3);
                      full.arrive();
                    }
                    full.wait(0);
                  }};
  };
  for (uint64_t seed = 0; seed < 8; ++seed)
    EXPECT_NO_THROW(emulator::launch_stream({first, second(true)}, seed));
  expect_error_of("before griddepcontrol.wait", [&](uint64_t seed) {
    emulator::launch_stream({first, second(false)}, seed);
  });
}

}  // namespace
}  // namespace dsv4
