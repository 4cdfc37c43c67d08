// A converter touches the memory of its room by ops and by the room's functions alone, and ops
// touch no other: here that memory is unreadable at all other times, as a GPU's is. Also the
// workers, on the host.

#include "dsv4/convert/convert_room.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/convert/weight_workers.h"
#include "dsv4/ops/kbit/quantize_fp4.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "dsv4/ops/kbit/row_errors.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"
#include "tests/harness/checkpoint_folder.h"
#include "tests/harness/errors.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

class DistantMemory : public Memory {
 public:
  ~DistantMemory() override { EXPECT_TRUE(sizes_.empty()) << "memory outlives its room"; }
  std::byte* allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(align_up(std::max<int64_t>(bytes, 1), 4096));
    void* const data = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sizes_[static_cast<std::byte*>(data)] = size;
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) noexcept override {
    munmap(data, sizes_[data]);
    sizes_.erase(data);
  }
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy(to, from, bytes);
  }
  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy(to, from, bytes);
  }
  bool holds(const ConstTensorView& view) const {
    const auto after = sizes_.upper_bound(const_cast<std::byte*>(view.data));
    if (view.empty() || after == sizes_.begin()) return view.empty();
    const auto& [data, size] = *std::prev(after);
    return view.data + view.bytes() <= data + size;
  }
  // While it lives, the memory can be accessed.
  class Access {
   public:
    explicit Access(DistantMemory& memory) : memory_(memory) { set(PROT_READ | PROT_WRITE); }
    ~Access() { set(PROT_NONE); }

   private:
    void set(int protection) {
      for (const auto& [data, size] : memory_.sizes_) mprotect(data, size, protection);
    }
    DistantMemory& memory_;
  };

 private:
  void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    const Access access(*this);
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  std::map<std::byte*, size_t> sizes_;
};

class DistantRoom : public ConvertRoom, Observer {
 public:
  explicit DistantRoom(DistantMemory& memory) : memory_(memory) {}

  void enter() override {}
  Context context() override { return {.observer = this}; }
  Memory& memory() override { return memory_; }
  ConstTensorView bring(Slot slot, const ConstTensorView& view) override {
    held_[slot] = Buffer(DType::kU8, {view.bytes()}, memory_);
    memory_.upload(held_[slot].view().data, view.data, view.bytes());
    return {view, held_[slot].view().data};
  }
  std::span<const std::byte> fetch(const ConstTensorView& view) override {
    fetched_.assign(static_cast<size_t>(view.bytes()), std::byte{0});
    memory_.download(fetched_.data(), view.data, view.bytes());
    return fetched_;
  }
  float largest(const ConstTensorView& x) override {
    const DistantMemory::Access access(memory_);
    return largest_magnitude(x);
  }
  void observe(const OpCall& call) override {
    expect_here(call);
    const DistantMemory::Access access(memory_);
    call.run();
  }

 private:
  void expect_here(const OpCall& call) const {
    std::vector<ConstTensorView> views;
    if (const auto* a = call.args_of(dequantize)) {
      views = {a->weight.data, a->weight.scale, a->weight.codebook, a->out};
    } else if (const auto* b = call.args_of(quantize_kbit)) {
      views = {b->x, b->importance, b->planes, b->scales, b->first_bad};
    } else if (const auto* c = call.args_of(quantize_fp4)) {
      views = {c->x, c->importance, c->pairs, c->scales, c->first_bad};
    } else if (const auto* d = call.args_of(row_errors)) {
      views = {d->x, d->y, d->importance, d->sums};
    } else {
      ADD_FAILURE() << call.op() << " is new here";
    }
    for (size_t i = 0; i < views.size(); ++i)
      EXPECT_TRUE(memory_.holds(views[i])) << call.op() << ", tensor " << i;
  }

  DistantMemory& memory_;
  Buffer held_[kSlots];
  std::vector<std::byte> fetched_;
};

struct Result {
  std::map<size_t, std::string> tensors;
  WeightError error;

  bool operator==(const Result& other) const {
    return tensors == other.tensors && std::memcmp(&error, &other.error, sizeof error) == 0;
  }
};

Result convert(WeightConverter converter, const WeightView& source, const std::string& format,
               const ConstTensorView& importance) {
  OutputItem item{.name = "layers.0.attn.wkv", .is_weight = true, .source = source.format};
  item.n = source.n, item.k = source.k;
  item.target = parse_recipe("attn " + format, "r").rules.at(0).target;
  item.source_bytes = source.bytes();
  EXPECT_EQ(WeightConverter::on_gpu(item), !item.renamed()) << format;
  Result result;
  const PieceSink sink = {.write =
                              [&](size_t tensor, int64_t, std::span<const std::byte> bytes) {
                                result.tensors[tensor].append(
                                    reinterpret_cast<const char*>(bytes.data()), bytes.size());
                              },
                          .consumed = [](int64_t) {}};
  ConvertChoice choice{.importance = importance};
  if (item.target.kind == Target::Kind::kKbit) choice.codebook = bnf_codebook(item.target.bits);
  result.error = converter.convert(source, item, choice, sink);
  return result;
}

TEST(ConvertRoom, IsReachedByOpsAndItsFunctionsOnly) {
  constexpr int64_t kRows = 300, kColumns = 96;  // three pieces of 128 rows
  test::Arena arena;
  Rng rng(21);
  const TensorView importance = arena.input(DType::kF32, {kColumns});
  test::fill_uniform(importance, rng, 0, 2);
  for (const test::StoredAs& stored : test::kAllStored) {
    const WeightView source = test::random_weight(arena, rng, stored, kRows, kColumns);
    for (const char* format : {"k2", "k3", "k4-bnf", "k5", "nvfp4", "mxfp4"}) {
      for (const int64_t piece : {int64_t{1}, int64_t{1} << 20}) {
        SCOPED_TRACE(fmt::format("{} to {}", name(stored), format));
        DistantMemory memory;
        const Result far = convert(WeightConverter(std::make_unique<DistantRoom>(memory), piece),
                                   source, format, importance);
        EXPECT_EQ(far, convert(WeightConverter(), source, format, importance));
      }
    }
  }
}

TEST(ConvertRoom, OfAGpuTakesSearchedFormatsOnly) {
  OutputItem item{.source = WeightFormat::kMxfp4};
  for (const auto& [format, taken] : {std::pair{"k2", true},
                                      {"k4-nf", true},
                                      {"nvfp4", true},
                                      {"mxfp4", false},
                                      {"k4-e2m1", false},
                                      {"fp8", false},
                                      {"bf16", false},
                                      {"keep", false}}) {
    item.target = parse_recipe(fmt::format("experts {}", format), "r").rules.at(0).target;
    EXPECT_EQ(WeightConverter::on_gpu(item), taken) << format;
  }
}

class Workers : public testing::Test {
 protected:
  Workers() {
    test::TestSource source;
    source.weight("layers.0.attn.wkv", WeightFormat::kF32, 4, 32);
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(source.write(folder_)));
  }
  WeightWorkers of(int number) { return {nullptr, *checkpoint_, number}; }

  test::TempFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(Workers, DoEveryCallOnce) {
  for (const int number : {1, 4}) {
    std::vector<std::atomic<int>> calls(1000);
    std::mutex mutex;
    std::set<const WeightWorker*> workers;
    of(number).run(calls.size(), [&](WeightWorker& worker, size_t i) {
      ++calls[i];
      const std::lock_guard lock(mutex);
      workers.insert(&worker);
    });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
    EXPECT_LE(workers.size(), static_cast<size_t>(number));
  }
  of(2).run(0, [](WeightWorker&, size_t) { FAIL(); });
}

// Whichever thread is faster: the error of the first weight that has one.
TEST_F(Workers, ThrowTheFirstErrorAndStop) {
  for (const int number : {1, 4}) {
    for (const size_t slow : {5, 6}) {
      std::atomic<int> calls = 0;
      const std::string error = test::error_of(ErrorCode::kBadInput, [&] {
        of(number).run(1000, [&](WeightWorker&, size_t i) {
          ++calls;
          while (i >= 5 && calls < 5 + number) std::this_thread::yield();  // all have begun
          if (i == slow) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          if (i >= 5) fail(ErrorCode::kBadInput, "call {}", i);
        });
      });
      EXPECT_EQ(error, "call 5");
      EXPECT_LE(calls, 5 + number);
    }
  }
}

}  // namespace
}  // namespace dsv4
