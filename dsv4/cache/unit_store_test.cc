// Units come back from host memory and from the disk with their bytes, after a restart too; what is
// damaged, missing or of another salt is a miss. The last tests are short forms of the fault
// campaigns (docs/spec/serving.md 10.4); DSV4_CAMPAIGN=500 makes them long.

#include "dsv4/cache/unit_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/rng.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using State = UnitStore::Lease::State;

constexpr UnitLayout kLayout{.step = 4, .block_bytes = 100, .checkpoint_bytes = 5000};
constexpr int64_t kSlot = 4096;  // bytes; a checkpoint takes two
const Digest kModel = digest_of("a model");

int campaign_rounds(int short_rounds) {
  const char* wanted = std::getenv("DSV4_CAMPAIGN");
  return wanted == nullptr ? short_rounds : std::atoi(wanted);
}

struct Text {
  std::vector<int32_t> ids;
  PrefixChain chain;

  Text(uint64_t seed, int64_t steps, const std::string& salt = "")
      : chain(kModel, salt, kLayout.step) {
    Rng rng(seed);
    for (int64_t i = 0; i < steps * kLayout.step; ++i)
      ids.push_back(static_cast<int32_t>(rng.below(1000)));
    chain.extend(ids);
  }
  std::span<const int32_t> first(int64_t steps) const {
    return std::span(ids).first(static_cast<size_t>(steps * kLayout.step));
  }
};

// What the blocks of a text and its checkpoint hold in these tests: numbers of the key.
void fill_with(const PrefixKey& key, std::span<const std::span<std::byte>> pieces) {
  uint64_t seed = 0;
  for (const uint8_t byte : key.bytes) seed = 31 * seed + byte;
  Rng rng(seed);
  for (const std::span<std::byte> piece : pieces)
    std::ranges::generate(piece, [&] { return static_cast<std::byte>(rng.below(256)); });
}

bool save(UnitStore& store, const Text& text, int64_t steps) {
  return store.save(text.chain, text.first(steps), [&](int64_t first, const UnitPieces& pieces) {
    for (size_t i = 0; i < pieces.blocks.size(); ++i)
      fill_with(text.chain.keys()[static_cast<size_t>(first / kLayout.step) + i],
                {&pieces.blocks[i], 1});
    fill_with(text.chain.keys()[static_cast<size_t>(steps) - 1], pieces.checkpoint);
  });
}

std::vector<std::byte> joined(const std::vector<std::span<std::byte>>& pieces) {
  std::vector<std::byte> all;
  for (const std::span<std::byte> piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

// Steps of the text that the store has, after it has read them; the bytes must be right.
int64_t found(UnitStore& store, const Text& text) {
  const auto lease = store.find(text.chain, text.ids, 0);
  if (lease == nullptr) return 0;
  if (lease->wait_for(std::chrono::seconds(30)) != State::kReady) return 0;
  const int64_t steps = lease->tokens() / kLayout.step;
  std::vector<std::byte> block(static_cast<size_t>(kLayout.block_bytes)),
      checkpoint(static_cast<size_t>(kLayout.checkpoint_bytes));
  const std::span<std::byte> one(block), end(checkpoint);
  const auto blocks = lease->blocks();
  EXPECT_EQ(static_cast<int64_t>(blocks.size()), steps);
  for (size_t i = 0; i < blocks.size(); ++i) {
    fill_with(text.chain.keys()[i], {&one, 1});
    EXPECT_TRUE(std::ranges::equal(blocks[i], block)) << "block " << i;
  }
  fill_with(text.chain.keys()[static_cast<size_t>(steps) - 1], {&end, 1});
  EXPECT_EQ(joined(lease->checkpoint()), checkpoint);
  return steps;
}

// False: it is not so within a minute.
bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return holds();
}

UnitStore open(const UnitStoreOptions& options) {
  return UnitStore(options, kLayout, kModel, host_memory());
}

class UnitStoreTest : public testing::Test {
 protected:
  UnitStoreOptions ram(int64_t slots) const { return {.ram_bytes = slots * kSlot}; }
  UnitStoreOptions disk(int64_t slots) const {
    UnitStoreOptions options = ram(slots);
    options.folder = folder_.file("cache");
    return options;
  }
  std::string unit_folder() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("cache")))
      return entry.path().string();
    return {};
  }
  std::string file_of(const Text& text, int64_t steps) const {
    return unit_folder() + "/" + text.chain.keys()[static_cast<size_t>(steps) - 1].hex() + ".dpc";
  }
  test::TempFolder folder_;
};

TEST_F(UnitStoreTest, FindsTheLongestBeginning) {
  UnitStore store = open(ram(40));
  const Text text(1, 9), other(2, 9), salted(1, 9, "salt");
  EXPECT_EQ(found(store, text), 0);
  EXPECT_TRUE(save(store, text, 3));
  EXPECT_TRUE(save(store, text, 8));
  EXPECT_TRUE(save(store, text, 5)) << "between two that exist";
  EXPECT_TRUE(save(store, text, 8)) << "again";
  EXPECT_EQ(store.stats().saved, 3);
  EXPECT_EQ(found(store, text), 8);
  EXPECT_EQ(store.match(text.chain, text.first(7)), 5 * kLayout.step);
  EXPECT_EQ(store.find(text.chain, text.ids, 8 * kLayout.step), nullptr) << "no longer one";
  EXPECT_EQ(found(store, other), 0);
  EXPECT_EQ(found(store, salted), 0);
  store.check_invariants();
  store.drop_all();
  EXPECT_EQ(found(store, text), 0);
  EXPECT_EQ(store.stats().ram_bytes, 0);
}

TEST_F(UnitStoreTest, UnitsSurviveARestart) {
  const Text text(1, 9), other(2, 4);
  {
    UnitStore store = open(disk(40));
    for (const int64_t steps : {2, 5, 9}) EXPECT_TRUE(save(store, text, steps));
    EXPECT_TRUE(save(store, other, 4));
  }  // the destructor writes what is queued
  UnitStore store = open(disk(40));
  EXPECT_EQ(store.stats().disk_units, 4);
  EXPECT_EQ(store.stats().ram_units, 0);
  EXPECT_EQ(found(store, text), 9);
  EXPECT_EQ(found(store, other), 4);
  EXPECT_EQ(store.stats().read, 4);
  EXPECT_GT(store.read_rate(), 0);
  store.check_invariants();
  EXPECT_THROW(open(disk(40)), Error) << "one program a folder";
}

TEST_F(UnitStoreTest, HostMemoryDropsTheLeastRecentlyUsed) {
  UnitStore store = open(ram(9));  // three units of one step
  std::vector<Text> texts;
  for (uint64_t seed = 1; seed <= 4; ++seed) texts.emplace_back(seed, 1);
  for (const size_t i : {0, 1, 2}) EXPECT_TRUE(save(store, texts[i], 1));
  EXPECT_EQ(found(store, texts[0]), 1);  // used after 1 and 2
  EXPECT_TRUE(save(store, texts[3], 1));
  EXPECT_EQ(found(store, texts[1]), 0);
  for (const size_t i : {0, 2, 3}) EXPECT_EQ(found(store, texts[i]), 1) << i;
  EXPECT_EQ(store.stats().lost, 1);
  const auto lease = store.find(texts[2].chain, texts[2].ids, 0);
  const Text large(5, 7);  // all slots
  EXPECT_FALSE(save(store, large, 7)) << "a unit in use stays";
  EXPECT_EQ(lease->state(), State::kReady);
  store.check_invariants();
}

TEST_F(UnitStoreTest, UnitsThatOthersNeedLeaveAfterThem) {
  UnitStore store = open(ram(9));
  const Text text(1, 3), other(2, 1);
  for (const int64_t steps : {1, 2, 3}) EXPECT_TRUE(save(store, text, steps));
  EXPECT_TRUE(save(store, other, 1));
  EXPECT_EQ(found(store, text), 2) << "the last one left";
  store.check_invariants();
}

TEST_F(UnitStoreTest, TheDiskKeepsWhatHostMemoryDrops) {
  UnitStore store = open(disk(9));
  const Text text(1, 3), other(2, 3);
  for (const int64_t steps : {1, 2, 3}) EXPECT_TRUE(save(store, text, steps));
  store.flush();
  for (const int64_t steps : {1, 2, 3}) EXPECT_TRUE(save(store, other, steps));
  store.flush();
  EXPECT_EQ(found(store, text), 3);
  EXPECT_EQ(found(store, other), 3);
  EXPECT_EQ(store.stats().lost, 0);
  EXPECT_GE(store.stats().read, 5);
  store.check_invariants();
}

TEST_F(UnitStoreTest, TheDiskHasABudget) {
  UnitStoreOptions options = disk(60);
  options.disk_bytes = 20000;  // three files
  std::vector<Text> texts;
  for (uint64_t seed = 1; seed <= 5; ++seed) texts.emplace_back(seed, 1);
  {
    UnitStore store = open(options);
    for (const Text& text : texts) {
      EXPECT_TRUE(save(store, text, 1));
      EXPECT_EQ(found(store, texts[0]), 1);  // the most used
      store.flush();
    }
    EXPECT_LE(store.stats().disk_bytes, options.disk_bytes);
    EXPECT_GT(store.stats().disk_evictions, 0);
    store.check_invariants();
  }
  UnitStore store = open(options);
  EXPECT_EQ(store.stats().disk_units, 3);
  EXPECT_EQ(found(store, texts[0]), 1);
}

TEST_F(UnitStoreTest, ADamagedUnitIsAMissWithThoseThatNeedIt) {
  const Text text(1, 9);
  {
    UnitStore store = open(disk(40));
    for (const int64_t steps : {2, 5, 9}) EXPECT_TRUE(save(store, text, steps));
  }
  std::string bytes = read_text_file(file_of(text, 5));
  bytes[bytes.size() / 2] ^= 1;
  folder_.write(std::filesystem::relative(file_of(text, 5), folder_.path()).string(), bytes);
  UnitStore store = open(disk(40));
  EXPECT_EQ(store.stats().disk_units, 3) << "the header is whole";
  EXPECT_EQ(found(store, text), 0) << "the read fails";
  EXPECT_EQ(found(store, text), 2);
  store.flush();
  EXPECT_EQ(store.stats().bad_files, 1);
  EXPECT_EQ(store.stats().disk_units, 1);
  EXPECT_TRUE(std::filesystem::exists(unit_folder() + "/bad"));
  store.check_invariants();
  EXPECT_TRUE(save(store, text, 9)) << "computed again";
  EXPECT_EQ(found(store, text), 9);
}

TEST_F(UnitStoreTest, AFileThatWasDeletedIsAMiss) {
  const Text text(1, 3);
  {
    UnitStore store = open(disk(40));
    EXPECT_TRUE(save(store, text, 3));
  }
  UnitStore store = open(disk(40));
  std::filesystem::remove(file_of(text, 3));
  EXPECT_EQ(found(store, text), 0);
  EXPECT_EQ(found(store, text), 0);
  EXPECT_FALSE(store.stats().disk_paused);
}

TEST_F(UnitStoreTest, OrphansAndFilesOfOthersAreSwept) {
  const Text text(1, 9);
  {
    UnitStore store = open(disk(40));
    for (const int64_t steps : {2, 5, 9}) EXPECT_TRUE(save(store, text, steps));
  }
  std::filesystem::remove(file_of(text, 2));
  std::filesystem::path half = file_of(text, 5) + ".1-1.tmp";
  std::filesystem::copy(file_of(text, 5), half);
  UnitStore store = open(disk(40));
  EXPECT_EQ(store.stats().disk_units, 0);
  EXPECT_FALSE(std::filesystem::exists(file_of(text, 9)));
  EXPECT_FALSE(std::filesystem::exists(half));
}

// RLIMIT_FSIZE stands for a disk that is full: root writes past permissions.
TEST_F(UnitStoreTest, AFullDiskPausesTheTierAndNothingElse) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  UnitStoreOptions options = disk(40);
  options.disk_pause = std::chrono::milliseconds(50);
  std::mutex mutex;
  std::vector<std::string> states;
  options.on_disk_state = [&](const std::string& error) {
    const std::lock_guard lock(mutex);
    states.push_back(error);
  };
  UnitStore store = open(options);
  const Text text(1, 5);
  const rlimit full{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_TRUE(save(store, text, 3));
  EXPECT_TRUE(eventually([&] { return store.stats().disk_paused; }));
  EXPECT_TRUE(eventually([&] { return store.stats().io_errors > 3; }));
  EXPECT_EQ(found(store, text), 3) << "from host memory";
  EXPECT_TRUE(save(store, text, 5));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(eventually([&] { return store.stats().written == 2; })) << "after the pause";
  EXPECT_EQ(store.stats().disk_units, 2);
  store.check_invariants();
  const std::lock_guard lock(mutex);
  ASSERT_EQ(states.size(), 2u) << "one when it began to fail, one when it worked again";
  EXPECT_NE(states[0].find("cannot write"), std::string::npos) << states[0];
  EXPECT_EQ(states[1], "");
}

TEST_F(UnitStoreTest, UnitsOfAFullDiskDoNotQueueForever) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    UnitStore store = open(disk(12));
    const rlimit full{.rlim_cur = 1000, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    for (uint64_t text = 0; text < 40; ++text) EXPECT_TRUE(save(store, Text(text, 1), 1));
    EXPECT_TRUE(eventually([&] { return store.stats().disk_paused; }));
    EXPECT_LE(store.stats().queued_writes, 5) << "those in host memory, and the one that failed";
    store.check_invariants();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

TEST_F(UnitStoreTest, HostMemoryAloneIsDropped) {
  UnitStore store = open(disk(40));
  const Text text(1, 5);
  for (const int64_t steps : {2, 5}) EXPECT_TRUE(save(store, text, steps));
  store.flush();
  store.drop_ram();
  store.check_invariants();
  EXPECT_EQ(store.stats().ram_units, 0);
  EXPECT_EQ(store.stats().disk_units, 2);
  EXPECT_EQ(found(store, text), 5);
  store.drop_ram();
  EXPECT_EQ(store.stats().ram_units, 0);
}

TEST_F(UnitStoreTest, ManyUnitsAreReadAtOnce) {
  const Text text(1, 60);
  {
    UnitStore store = open(disk(400));
    for (int64_t steps = 1; steps <= 60; ++steps) EXPECT_TRUE(save(store, text, steps));
  }
  UnitStore store = open(disk(400));
  EXPECT_EQ(found(store, text), 60);
  EXPECT_EQ(store.stats().read, 60);
  store.check_invariants();
}

// The folder holds no more than its limit, whatever model wrote the units.
TEST_F(UnitStoreTest, UnitsOfOtherModelsGoFirst) {
  const Text text(1, 9);
  const auto open_as = [&](const char* model, int64_t bytes) {
    UnitStoreOptions options = disk(40);
    options.disk_bytes = bytes;
    return std::make_unique<UnitStore>(options, kLayout, digest_of(model), host_memory());
  };
  const auto save_as = [&](const char* model, UnitStore& store) {
    PrefixChain chain(digest_of(model), "", kLayout.step);
    chain.extend(text.ids);
    EXPECT_TRUE(store.save(chain, text.first(4), [](int64_t, const UnitPieces&) {}));
    store.flush();
  };
  const auto files = [&] {
    int count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.file("cache")))
      count += entry.path().extension() == ".dpc" ? 1 : 0;
    return count;
  };
  save_as("old", *open_as("old", 1 << 20));
  {
    const auto held = open_as("old", 1 << 20);
    const auto store = open_as("new", 7000);
    save_as("new", *store);
    EXPECT_EQ(files(), 2) << "another program uses those";
  }
  const auto store = open_as("new", 7000);
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(store->stats().disk_units, 1);
}

// A limit of the address space leaves no room for the stacks of all threads.
TEST_F(UnitStoreTest, AThreadThatCannotStartIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs address space of its own";
#endif
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const UnitStoreOptions options = disk(40);
  int refused = 0;
  for (int64_t room = 2; room < 100; room += 4) {  // MB
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit little{.rlim_cur = static_cast<rlim_t>(pages * getpagesize() + (room << 20)),
                        .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
    try {
      open(options);
    } catch (const Error& error) {
      refused += error.code() == ErrorCode::kResource ? 1 : 0;
    } catch (const std::bad_alloc&) {
    }
    setrlimit(RLIMIT_AS, &before);
  }
  EXPECT_GT(refused, 0);
}

TEST_F(UnitStoreTest, OneConversationIsOneFile) {
  const Text text(1, 9);
  const std::string file = folder_.file("conversation");
  {
    UnitStore store = open(ram(40));
    for (const int64_t steps : {2, 5, 9}) EXPECT_TRUE(save(store, text, steps));
    store.export_text(file, text.chain, text.first(9));
  }
  UnitStore store = open(ram(40));
  store.import_text(file);
  EXPECT_EQ(found(store, text), 9);
  UnitStore other(ram(40), kLayout, digest_of("another model"), host_memory());
  EXPECT_THROW(other.import_text(file), Error);
  std::string bytes = read_text_file(file);
  bytes[400] ^= 1;
  folder_.write("conversation", bytes);
  UnitStore fresh = open(ram(40));
  EXPECT_THROW(fresh.import_text(file), Error);
  EXPECT_EQ(found(fresh, text), 0);
  fresh.check_invariants();
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DSV4_TEST_TSAN 1
#endif
#endif

// Saves random texts and writes the number of each to `out` once it is on the disk, until it is
// killed.
[[noreturn]] void save_until_killed(UnitStoreOptions options, uint64_t seed, int out) {
  std::map<PrefixKey, uint64_t> numbers;
  std::mutex mutex;
  options.on_written = [&](const UnitHeader& header) {
    const std::lock_guard lock(mutex);
    const uint64_t number = numbers.at(header.key);
    if (write(out, &number, sizeof number) != sizeof number) _exit(3);
  };
  UnitStore store = open(options);
  for (uint64_t number = seed * 1000;; ++number) {
    const Text text(number, 3);
    {
      const std::lock_guard lock(mutex);
      numbers[text.chain.keys()[2]] = number;
    }
    if (!save(store, text, 3)) std::this_thread::yield();
  }
}

// Campaign 1: no torn unit is loaded, and every unit that was announced loads.
TEST_F(UnitStoreTest, AKilledProgramLosesNothingThatWasWritten) {
#ifdef DSV4_TEST_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not follow a child that starts threads";
#endif
  const int rounds = campaign_rounds(20);
  Rng rng(5);
  for (int round = 1; round <= rounds; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(disk(30), static_cast<uint64_t>(round), ends[1]);
    close(ends[1]);
    std::vector<uint64_t> announced;
    uint64_t number = 0;
    const int64_t wanted = 1 + rng.below(30);  // then it is killed in the middle of another one
    while (static_cast<int64_t>(announced.size()) < wanted &&
           read(ends[0], &number, sizeof number) == sizeof number)
      announced.push_back(number);
    usleep(static_cast<useconds_t>(rng.below(2000)));
    kill(child, SIGKILL);
    while (read(ends[0], &number, sizeof number) == sizeof number) announced.push_back(number);
    int status = 0;
    waitpid(child, &status, 0);
    close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    UnitStore store = open(disk(300));
    EXPECT_EQ(store.stats().bad_files, 0) << "a torn unit";
    for (const uint64_t one : announced) EXPECT_EQ(found(store, Text(one, 3)), 3) << one;
    EXPECT_EQ(store.stats().bad_files, 0);
    store.drop_all();
    store.flush();
  }
}

}  // namespace
}  // namespace dsv4
