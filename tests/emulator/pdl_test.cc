// Programmatic dependent launch: when a kernel may start, what griddepcontrol.wait orders, and
// which accesses are hazards.

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "tests/emulator/expect_error.h"

namespace dsv4 {
namespace {

using emulator::Kernel;

constexpr int kCtas = 3;

// Triggers, then writes i + `add` to each element i of `out`, or that of `in` and `add`.
Kernel writer(std::vector<int>& out, int add, const std::vector<int>* in = nullptr) {
  return {{.grid = kCtas, .pdl = true, .resident = 2}, [=, &out] {
            ptx::griddepcontrol_launch_dependents();
            ptx::griddepcontrol_wait();
            const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
            out[i] = (in == nullptr ? static_cast<int>(i) : (*in)[i]) + add;
          }};
}

// Reads what other threads of the kernel before have written.
Kernel reader(const std::vector<int>& in, std::vector<int>& out, bool waits) {
  return {{.grid = kCtas, .pdl = true, .resident = 2}, [=, &in, &out] {
            ptx::griddepcontrol_launch_dependents();
            if (waits) ptx::griddepcontrol_wait();
            const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
            out[i] = in[in.size() - 1 - i];
          }};
}

void expect_hazard(const std::string& text, const std::vector<Kernel>& kernels) {
  emulator::expect_error_of(text, [&](uint64_t seed) { emulator::launch_stream(kernels, seed); });
}

// Lets the next kernel start before or after it waits.
Kernel bystander(bool waits_first) {
  return {{.grid = kCtas, .pdl = true, .resident = 2}, [=] {
            if (waits_first) ptx::griddepcontrol_wait();
            ptx::griddepcontrol_launch_dependents();
            if (!waits_first) ptx::griddepcontrol_wait();
          }};
}

struct Vectors {
  std::vector<int> a = std::vector<int>(32 * kCtas), b = a, c = a;
};

TEST(EmulatorPdl, AKernelReadsAfterTheWait) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    Vectors v;
    emulator::launch_stream({writer(v.a, 5), reader(v.a, v.b, true), reader(v.b, v.c, true)}, seed);
    std::vector<int> want(v.c.size());
    std::iota(want.begin(), want.end(), 5);
    ASSERT_EQ(v.c, want) << seed;
  }
}

TEST(EmulatorPdl, ReadingBeforeTheWaitIsAHazard) {
  Vectors v;
  expect_hazard("kernel 1 does so before griddepcontrol.wait",
                {writer(v.a, 5), reader(v.a, v.b, false)});
}

TEST(EmulatorPdl, ATriggerAfterTheWaitOrdersWhatWasWaitedFor) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    Vectors v;
    emulator::launch_stream({writer(v.a, 5), bystander(true), reader(v.a, v.b, false)}, seed);
    ASSERT_EQ(v.b.front(), v.a.back()) << seed;
  }
  Vectors v;
  expect_hazard("before griddepcontrol.wait",
                {writer(v.a, 5), bystander(false), reader(v.a, v.b, false)});
}

// A kernel between them that triggers at once starts when it does.
TEST(EmulatorPdl, WhatIsCompleteAtAStartIsSoAtLaterStarts) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    Vectors v;
    emulator::launch_stream(
        {writer(v.a, 5), bystander(true), bystander(false), reader(v.a, v.b, false)}, seed);
    ASSERT_EQ(v.b.front(), v.a.back()) << seed;
  }
  Vectors v;
  expect_hazard("before griddepcontrol.wait",
                {writer(v.a, 5), bystander(false), bystander(false), reader(v.a, v.b, false)});
}

// Also if the kernel before never triggers: then its CTAs end before, but its writes are not
// visible.
TEST(EmulatorPdl, ReadingWithoutAWaitIsAHazardAfterTheEnd) {
  Vectors v;
  const Kernel plain{{}, [&] { v.a[threadIdx.x] = 1; }};
  Kernel reads{{.pdl = true}, [&] { v.b[threadIdx.x] = v.a[threadIdx.x]; }};
  expect_hazard("before griddepcontrol.wait", {plain, reads});
  reads.launch.pdl = false;
  emulator::launch_stream({plain, reads}, 0);
  EXPECT_EQ(v.b[31], 1);
}

TEST(EmulatorPdl, WritingWhatTheKernelBeforeReadsIsAHazard) {
  Vectors v;
  const Kernel overwrites{{.pdl = true}, [&] { v.a[threadIdx.x + 7] = 3; }};
  expect_hazard("before griddepcontrol.wait", {reader(v.a, v.b, true), overwrites});
  const Kernel same{{.pdl = true}, [&] { v.b[threadIdx.x] = 3; }};
  expect_hazard("before griddepcontrol.wait", {reader(v.a, v.b, true), same});
}

TEST(EmulatorPdl, HazardsAreFoundByTheByte) {
  std::vector<uint8_t> bytes(64);
  const Kernel even{{.pdl = true}, [&] { bytes[2 * threadIdx.x] = 1; }};
  const Kernel odd{{.pdl = true}, [&] { bytes[2 * threadIdx.x + 1] = 1; }};
  for (uint64_t seed = 0; seed < 4; ++seed)
    EXPECT_NO_THROW(emulator::launch_stream({even, odd}, seed));
  expect_hazard("before griddepcontrol.wait", {even, odd, even});
}

// The wait of one thread is passed on by barriers of its CTA.
TEST(EmulatorPdl, ABarrierAfterTheWaitOrdersTheOtherThreads) {
  Vectors v;
  const auto second = [&](bool barrier) {
    return Kernel{{.pdl = true}, [&v, barrier] {
                    __shared__ ptx::Mbarrier ready;
                    if (threadIdx.x == 0) ready.init(1);
                    __syncthreads();
                    if (threadIdx.x == 0) {
                      ptx::griddepcontrol_wait();
                      ready.arrive();
                    }
                    if (barrier) ready.wait(0);
                    v.b[threadIdx.x] = v.a[threadIdx.x];
                  }};
  };
  for (uint64_t seed = 0; seed < 8; ++seed) {
    emulator::launch_stream({writer(v.a, static_cast<int>(seed)), second(true)}, seed);
    EXPECT_EQ(v.b[31], 31 + static_cast<int>(seed));
  }
  expect_hazard("before griddepcontrol.wait", {writer(v.a, 1), second(false)});
}

// griddepcontrol.wait waits for the kernel directly before it only.
TEST(EmulatorPdl, AKernelThatDoesNotWaitBreaksTheChain) {
  Vectors v;
  const auto middle = [](bool waits) {
    return Kernel{{.pdl = true}, [waits] {
                    ptx::griddepcontrol_launch_dependents();
                    if (waits) ptx::griddepcontrol_wait();
                  }};
  };
  emulator::launch_stream({writer(v.a, 1), middle(true), reader(v.a, v.b, true)}, 1);
  expect_hazard("has not waited for its own",
                {writer(v.a, 1), middle(false), reader(v.a, v.b, true)});
}

// Copies in the background read when they are performed, but count as issued.
TEST(EmulatorPdl, ACopyThatIsIssuedBeforeTheWaitIsAHazard) {
  Vectors v;
  const auto second = [&](bool early) {
    return Kernel{{.pdl = true}, [&v, early] {
                    alignas(16) __shared__ int values[4];
                    __shared__ ptx::Mbarrier full;
                    if (!early) ptx::griddepcontrol_wait();
                    if (threadIdx.x == 0) {
                      full.init(1);
                      full.expect_tx(16);
                      ptx::cp_async_bulk(ptx::smem_address(values), v.a.data(), 16, full);
                      full.arrive();
                    }
                    if (early) ptx::griddepcontrol_wait();
                    __syncthreads();
                    full.wait(0);
                    if (threadIdx.x == 0) v.b[0] = values[3];
                  }};
  };
  emulator::launch_stream({writer(v.a, 1), second(false)}, 3);
  EXPECT_EQ(v.b[0], 4);
  expect_hazard("before griddepcontrol.wait", {writer(v.a, 1), second(true)});
}

// A counter that is not memory of the kernels: its accesses are not tracked.
struct Probe {
  int value = 0;
  __attribute__((no_sanitize("thread"), noinline)) void add() { ++value; }
  __attribute__((no_sanitize("thread"), noinline)) void copy(const Probe& from) {
    value = from.value;
  }
};

// Kernel 1 starts while kernel 0 runs, but only when every CTA of kernel 0 has triggered or ended.
TEST(EmulatorPdl, AKernelStartsWhenEveryCtaHasTriggered) {
  int overlaps = 0;
  for (uint64_t seed = 0; seed < 32; ++seed) {
    Probe triggered, ended, triggered_at_start, ended_at_start;
    const Kernel first{{.grid = kCtas, .block = 1, .resident = kCtas}, [&] {
                         __syncthreads();
                         triggered.add();
                         if (blockIdx.x != 1) ptx::griddepcontrol_launch_dependents();
                         for (int i = 0; blockIdx.x != 1 && i < 50; ++i) __syncthreads();
                         ended.add();
                       }};
    const Kernel second{{.block = 1, .pdl = true}, [&] {
                          triggered_at_start.copy(triggered);
                          ended_at_start.copy(ended);
                        }};
    emulator::launch_stream({first, second}, seed);
    EXPECT_EQ(triggered_at_start.value, kCtas);
    EXPECT_GE(ended_at_start.value, 1);
    overlaps += ended_at_start.value < kCtas;
  }
  EXPECT_GT(overlaps, 3);
}

TEST(EmulatorPdl, DeadlocksNameTheKernel) {
  const Kernel first{{}, [] {
                       ptx::griddepcontrol_launch_dependents();
                       if (threadIdx.x < 31) __syncthreads();
                     }};
  const Kernel second{{.pdl = true}, [] { ptx::griddepcontrol_wait(); }};
  expect_hazard("kernel 1 CTA 0: waits at griddepcontrol.wait for kernel 0", {first, second});
}

}  // namespace
}  // namespace dsv4
