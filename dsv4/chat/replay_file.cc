#include "dsv4/chat/replay_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "dsv4/base/atomic_file.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/sha256.h"

namespace dsv4 {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr std::string_view kMagic = "DSV4RPM1";
constexpr size_t kMaxFile = size_t{1} << 30;
constexpr mode_t kOwnerOnly = 0600;

using Digest = TurnKey;

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

template <class Number>
void append(std::string& bytes, Number number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof number);
}

// Fields from the front of the file; every length is checked before it is used.
class Reader {
 public:
  Reader(std::string_view bytes, const std::string& path) : left_(bytes), path_(path) {}

  std::string_view bytes(size_t count) {
    if (count > left_.size()) damaged();
    const std::string_view field = left_.substr(0, count);
    left_.remove_prefix(count);
    return field;
  }
  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
  bool empty() const { return left_.empty(); }
  [[noreturn]] void damaged() const {
    fail(ErrorCode::kBadInput, "{} is not a whole replay map: remove it", path_);
  }

 private:
  std::string_view left_;
  const std::string& path_;
};

}  // namespace

std::string replay_file(const std::string& folder, const std::string& tokenizer_json) {
  std::string name = folder + "/replay-";
  const Digest digest = sha256(tokenizer_json);
  for (size_t i = 0; i < 8; ++i) name += fmt::format("{:02x}", digest[i]);
  return name + ".map";
}

void save_replay_map(const ReplayMap& map, const std::string& path,
                     const std::string& tokenizer_json) {
  std::string turns;
  uint64_t count = 0;
  map.for_each([&](const TurnKey& key, const RecordedTurn& turn) {
    turns += view(key);
    append(turns, static_cast<uint32_t>(turn.ids.size()));
    append(turns, static_cast<uint32_t>(turn.text.size()));
    turns.append(reinterpret_cast<const char*>(turn.ids.data()), turn.ids.size() * sizeof(int32_t));
    turns += turn.text;
    ++count;
  });
  std::string bytes(kMagic);
  bytes += view(sha256(tokenizer_json));
  append(bytes, count);
  bytes += turns;
  bytes += view(sha256(bytes));
  AtomicFile file(path, kOwnerOnly);
  file.write_at(0, std::as_bytes(std::span(bytes)));
  file.commit();
}

void load_replay_map(ReplayMap& map, const std::string& path, const std::string& tokenizer_json) {
  if (!is_present(path)) return;
  const std::string file = read_text_file(path, kMaxFile);
  const size_t digest = sizeof(Digest);
  Reader whole(file, path);
  if (file.size() < digest) whole.damaged();
  Reader reader(std::string_view(file).substr(0, file.size() - digest), path);
  whole.bytes(file.size() - digest);
  if (whole.bytes(digest) != view(sha256(std::string_view(file).substr(0, file.size() - digest))) ||
      reader.bytes(kMagic.size()) != kMagic || reader.bytes(digest) != view(sha256(tokenizer_json)))
    whole.damaged();
  std::vector<std::pair<TurnKey, RecordedTurn>> turns;
  for (auto count = reader.number<uint64_t>(); count > 0; --count) {
    auto& [key, turn] = turns.emplace_back();
    std::ranges::copy(reader.bytes(key.size()), key.begin());
    const auto ids = reader.number<uint32_t>(), text = reader.number<uint32_t>();
    const std::string_view raw = reader.bytes(size_t{ids} * sizeof(int32_t));
    turn.ids.resize(ids);
    std::memcpy(turn.ids.data(), raw.data(), raw.size());
    turn.text = reader.bytes(text);
  }
  if (!reader.empty()) whole.damaged();
  for (auto& [key, turn] : turns) map.record(key, std::move(turn));
}

}  // namespace dsv4
