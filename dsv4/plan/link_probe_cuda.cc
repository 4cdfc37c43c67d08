#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/device/device.h"
#include "dsv4/device/event.h"
#include "dsv4/device/memory.h"
#include "dsv4/ops/parts/experts_fetch/link_copies.h"
#include "dsv4/plan/link_probe.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLaunches = 15;         // of which the median counts
constexpr int64_t kPlaces = 64;       // in GPU memory
constexpr int64_t kMarkBytes = 4096;  // one number in every page

class Stream {
 public:
  Stream() { cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// One kind of traffic: enqueue(i) puts its batch i on the stream.
struct Traffic {
  cudaStream_t stream = nullptr;
  int64_t batch_bytes = 0;
  std::function<void(int)> enqueue;
  double LinkRates::*rate = nullptr;
  std::vector<Event> marks = {};  // before the first batch, and behind each
};

// Threads that read a block of host memory again and again, from start to stop.
class HostReader {
 public:
  HostReader(int threads, int64_t bytes)
      : words_(static_cast<size_t>(bytes / 8), 1), read_(static_cast<size_t>(threads)) {}
  ~HostReader() { stop(); }

  void start() {
    ends_ = false;
    begin_ = Clock::now();
    for (std::atomic<int64_t>& count : read_) count = 0;
    for (size_t t = 0; t < read_.size(); ++t) threads_.emplace_back([this, t] { run(t); });
  }
  // Bytes per second of all threads since the start.
  double stop() {
    if (threads_.empty()) return 0;
    int64_t bytes = 0;
    for (const std::atomic<int64_t>& count : read_) bytes += count;
    const std::chrono::duration<double> spent = Clock::now() - begin_;
    ends_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return static_cast<double>(bytes) / spent.count();
  }

 private:
  void run(size_t thread) {
    constexpr size_t kPiece = size_t{1} << 17;  // words
    const size_t share = words_.size() / read_.size(), first = thread * share;
    uint64_t sum = 0;
    for (size_t at = 0; !ends_; at = at + 2 * kPiece <= share ? at + kPiece : 0) {
      const auto begin = words_.begin() + static_cast<std::ptrdiff_t>(first + at);
      sum = std::reduce(begin, begin + static_cast<std::ptrdiff_t>(std::min(kPiece, share)), sum);
      read_[thread] += static_cast<int64_t>(8 * std::min(kPiece, share));
    }
    sum_ += sum;  // so that the reads are not left out
  }

  std::vector<uint64_t> words_;
  std::vector<std::atomic<int64_t>> read_;
  std::vector<std::thread> threads_;
  std::atomic<bool> ends_{false};
  std::atomic<uint64_t> sum_{0};
  Clock::time_point begin_;
};

class LinkBench {
 public:
  LinkBench(Device& device, const LinkOptions& options)
      : device_(device),
        options_(options),
        expert_bytes_(align_up(options.expert_bytes, 256)),
        experts_(std::max<int64_t>(options.host_bytes / expert_bytes_, 1)),
        of_batch_(std::clamp<int64_t>(options.batch_bytes / expert_bytes_, 1,
                                      std::min(kPlaces, experts_))),
        locked_(device.info().ordinal),
        host_(DType::kU8, {experts_, expert_bytes_}, locked_),
        landing_(DType::kU8, {of_batch_, expert_bytes_}, locked_),
        places_(DType::kU8, {kPlaces, expert_bytes_}, device.memory()),
        source_(DType::kU8, {of_batch_, expert_bytes_}, device.memory()),
        target_(DType::kU8, {2 * of_batch_, expert_bytes_}, device.memory()),
        reader_(std::max(options.threads, 1), std::min<int64_t>(options.host_bytes, 1 << 30)) {
    fill();
  }

  LinkReport run() {
    LinkReport report{.kernels = device_.info().major == 9};
    const auto row = [&](const char* what, int ctas, std::vector<Traffic> traffic, bool reads) {
      report.rows.push_back({what, ctas, rates_of(std::move(traffic), reads)});
    };
    const auto list = [](auto&&... traffic) {
      std::vector<Traffic> all;
      (all.push_back(std::forward<decltype(traffic)>(traffic)), ...);
      return all;
    };
    row("copy engine, one large piece", 0, list(large_up()), false);
    row("copy engine, experts", 0, list(up()), false);
    row("copy engine, down", 0, list(down()), false);
    row("copy engine, both directions", 0, list(up(), down()), false);
    row("threads", 0, {}, true);
    row("copy engine and threads", 0, list(up()), true);
    for (const int ctas : report.kernels ? options_.ctas : std::vector<int>()) {
      row("kernel", ctas, list(kernel(ctas)), false);
      row("kernel and threads", ctas, list(kernel(ctas)), true);
      row("kernel and copy engine down", ctas, list(kernel(ctas), down()), false);
      row("kernel and copy engine up", ctas, list(kernel(ctas), up()), false);
      row("kernel and copies in GPU memory", ctas, list(kernel(ctas), inside()), false);
      for (const int count : {1, 3})
        report.launches.push_back({ctas, count, seconds_of_launch(ctas, count)});
    }
    return report;
  }

 private:
  // A number in every page, so that copies can be checked.
  void fill() {
    const TensorView all = host_;
    for (int64_t at = 0; at < all.bytes(); at += kMarkBytes)
      std::memcpy(all.data + at, &at, sizeof(at));
    std::vector<int64_t> homes(static_cast<size_t>(experts_));
    for (int64_t e = 0; e < experts_; ++e)
      homes[static_cast<size_t>(e)] = reinterpret_cast<int64_t>(all.data + e * expert_bytes_);
    homes_ = sent(DType::kI64, {experts_}, homes.data());
  }

  Buffer sent(DType dtype, std::initializer_list<int64_t> shape, const void* values) {
    Buffer buffer(dtype, shape, device_.memory());
    device_.memory().upload(buffer.view().data, static_cast<const std::byte*>(values),
                            buffer.view().bytes());
    return buffer;
  }

  int64_t random_expert() { return rng_.below(experts_); }
  int64_t bytes_of_batch() const { return of_batch_ * expert_bytes_; }

  void copy(cudaStream_t stream, std::byte* to, const std::byte* from, int64_t bytes,
            cudaMemcpyKind kind) {
    cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream),
               "a copy over the link");
  }

  Traffic large_up() {
    const int64_t most = experts_ - of_batch_;
    return {first_.get(), bytes_of_batch(),
            [this, most](int) {
              const int64_t from = most > 0 ? rng_.below(most) : 0;
              copy(first_.get(), target_.view().data, host_.view().data + from * expert_bytes_,
                   bytes_of_batch(), cudaMemcpyHostToDevice);
            },
            &LinkRates::up};
  }
  Traffic up() {
    return {first_.get(), bytes_of_batch(),
            [this](int) {
              for (int64_t i = 0; i < of_batch_; ++i)
                copy(first_.get(), target_.view().data + i * expert_bytes_,
                     host_.view().data + random_expert() * expert_bytes_, expert_bytes_,
                     cudaMemcpyHostToDevice);
            },
            &LinkRates::up};
  }
  Traffic down() {
    return {second_.get(), bytes_of_batch(),
            [this](int) {
              for (int64_t i = 0; i < of_batch_; ++i)
                copy(second_.get(), landing_.view().data + i * expert_bytes_,
                     source_.view().data + i * expert_bytes_, expert_bytes_,
                     cudaMemcpyDeviceToHost);
            },
            &LinkRates::down};
  }
  Traffic inside() {
    return {second_.get(), 2 * bytes_of_batch(),
            [this](int) {
              copy(second_.get(), target_.view().data + bytes_of_batch(), source_.view().data,
                   bytes_of_batch(), cudaMemcpyDeviceToDevice);
            },
            &LinkRates::device};
  }
  Traffic kernel(int ctas) {
    choose_moves(options_.batches, of_batch_);
    return {device_.stream(), bytes_of_batch(),
            [this, ctas](int i) { copy_over_link(device_, copies(ctas, i)); }, &LinkRates::kernel};
  }

  // Random experts to places one after the other, for launches of so many.
  void choose_moves(int64_t launches, int64_t of_each) {
    moves_of_launch_ = of_each;
    chosen_.clear();
    for (int64_t i = 0; i < launches * of_each; ++i) {
      chosen_.push_back(static_cast<int32_t>(random_expert()));
      chosen_.push_back(static_cast<int32_t>(i % kPlaces));
    }
    const auto count = static_cast<int32_t>(of_each);
    moves_ = sent(DType::kI32, {launches * of_each, 2}, chosen_.data());
    count_ = sent(DType::kI32, {1}, &count);
  }
  LinkCopies copies(int ctas, int64_t launch) const {
    const int64_t first = launch * moves_of_launch_;
    return {.homes = homes_,
            .memory = places_,
            .moves = moves_.view().slice(0, first, first + moves_of_launch_),
            .count = count_,
            .ctas = ctas};
  }

  LinkRates rates_of(std::vector<Traffic> traffic, bool reads) {
    for (Traffic& one : traffic) one.enqueue(0);  // not counted: pages, clocks
    wait_for_all();
    if (reads) reader_.start();
    for (Traffic& one : traffic) {
      one.marks = std::vector<Event>(static_cast<size_t>(options_.batches) + 1);
      one.marks[0].record(one.stream);
    }
    for (int i = 0; i < options_.batches; ++i) {
      for (Traffic& one : traffic) {
        one.enqueue(i);
        one.marks[static_cast<size_t>(i) + 1].record(one.stream);
      }
    }
    if (traffic.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    wait_for_all();
    LinkRates rates;
    if (reads) rates.host_read = reader_.stop();
    add_rates(traffic, rates);
    for (const Traffic& one : traffic)
      if (one.rate == &LinkRates::kernel) check_last_moves();
    return rates;
  }

  void wait_for_all() {
    device_.wait();
    for (const Stream* stream : {&first_, &second_})
      cuda_check(cudaStreamSynchronize(stream->get()), "copies over the link");
  }

  // Batches count that lie between the last beginning and the first end of all traffic.
  void add_rates(const std::vector<Traffic>& traffic, LinkRates& rates) const {
    if (traffic.empty()) return;
    const Event& zero = traffic[0].marks[0];
    double from = 0, to = traffic[0].marks.back().seconds_since(zero);
    for (const Traffic& one : traffic) {
      from = std::max(from, one.marks[0].seconds_since(zero));
      to = std::min(to, one.marks.back().seconds_since(zero));
    }
    for (const Traffic& one : traffic) {
      double first = -1, last = -1;
      int64_t batches = -1;
      for (const Event& mark : one.marks) {
        const double at = mark.seconds_since(zero);
        if (at < from || at > to) continue;
        if (first < 0) first = at;
        last = at, ++batches;
      }
      if (batches > 0)
        rates.*one.rate = static_cast<double>(batches * one.batch_bytes) / (last - first);
    }
  }

  // The expert that was copied last to each place is there: its number in every page.
  void check_last_moves() {
    std::vector<int32_t> in(kPlaces, -1);
    for (size_t i = 0; i < chosen_.size(); i += 2)
      in[static_cast<size_t>(chosen_[i + 1])] = chosen_[i];
    std::vector<std::byte> got(static_cast<size_t>(expert_bytes_));
    for (const int64_t place : {int64_t{0}, int64_t{kPlaces - 1}}) {
      const int64_t expert = in[static_cast<size_t>(place)];
      if (expert < 0) continue;
      device_.memory().download(got.data(), places_.view().data + place * expert_bytes_,
                                expert_bytes_);
      if (std::memcmp(got.data(), host_.view().data + expert * expert_bytes_, got.size()) != 0)
        fail(ErrorCode::kBadInput, "place {} does not hold the bytes of expert {}", place, expert);
    }
  }

  double seconds_of_launch(int ctas, int experts) {
    choose_moves(kLaunches, experts);
    std::vector<double> seconds;
    for (int i = 0; i < kLaunches; ++i) {
      Event begin, end;
      begin.record(device_.stream());
      copy_over_link(device_, copies(ctas, i));
      end.record(device_.stream());
      end.wait();
      seconds.push_back(end.seconds_since(begin));
    }
    std::nth_element(seconds.begin(), seconds.begin() + kLaunches / 2, seconds.end());
    return seconds[kLaunches / 2];
  }

  Device& device_;
  const LinkOptions options_;
  const int64_t expert_bytes_, experts_, of_batch_;
  Rng rng_{1};
  MappedMemory locked_;
  const Buffer host_, landing_;            // page-locked: [experts], [of_batch], expert_bytes
  const Buffer places_, source_, target_;  // on the device
  Buffer homes_, moves_, count_;           // on the device
  std::vector<int32_t> chosen_;            // moves_, here
  int64_t moves_of_launch_ = 0;
  Stream first_, second_;
  HostReader reader_;
};

}  // namespace

LinkReport measure_link(Device& device, const LinkOptions& options) {
  DSV4_CHECK(
      options.expert_bytes > 0 && options.host_bytes >= options.expert_bytes && options.batches > 1,
      "experts of {} bytes in {}, {} batches", options.expert_bytes, options.host_bytes,
      options.batches);
  return LinkBench(device, options).run();
}

}  // namespace dsv4
