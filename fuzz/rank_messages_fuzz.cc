// What ranks that are processes read from each other: the first byte says which message the others
// are, or that they are the variables of a launcher, "RANK=0\nWORLD_SIZE=2\n".

#include "dsv4/engine/rank_messages.h"

#include <map>

#include "fuzz/fuzz.h"

namespace dsv4 {
namespace {

constexpr int64_t kBlockBytes = 4096;  // of memory of rank 0, from its address 0 on

std::byte* at(const std::byte* address, int64_t bytes) {
  fuzz::require(bytes >= 0);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin > kBlockBytes || bytes > kBlockBytes - static_cast<int64_t>(begin))
    fail(ErrorCode::kBadInput, "no block holds {} bytes", bytes);
  return unmapped_address(static_cast<int64_t>(begin));
}

void read_hello(const Bytes& bytes) {
  const RankIdentity own{"dsv4 1", "abc", "avx2"};
  const RankHello hello = get_hello(bytes, own);
  const bool equal = difference(hello, {0, 2}, own).empty();
  fuzz::require(!equal || (hello.id == ShardId{1, 2} && hello.identity.model == own.model));
}

void read_plan(const Bytes& bytes) {
  MessageReader from(bytes);
  StepForm form;
  const auto plan = get_plan(from, form);
  MessageWriter to;
  put_plan(to, *plan, form);
  MessageReader again(to.bytes());
  const auto copy = get_plan(again, form);
  fuzz::require(copy->step() == plan->step() && copy->batch().ids == plan->batch().ids &&
                copy->batch().runs.size() == plan->batch().runs.size());
}

void read_draft(const Bytes& bytes) {
  MessageReader from(bytes);
  bool eager = false;
  const auto plan = get_draft(from, at, eager);
  const DraftChain& chain = plan->chain();
  fuzz::require(chain.guesses() > 0 && chain.sampling.count() == chain.sequences.front());
}

void read_context(const Bytes& bytes) {
  MessageReader from(bytes);
  const auto text = get_context(from);
  from.end();
  fuzz::require(text->context.choices.size() == text->names.size());
}

void read_variables(const std::string& text) {
  std::map<std::string, std::string> variables;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (const size_t equals = line.find('='); equals != std::string::npos)
      variables[line.substr(0, equals)] = line.substr(equals + 1);
    begin = end + 1;
  }
  const LaunchedRank self = launched_rank([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
  fuzz::require(0 <= self.id.rank && self.id.rank < self.id.world && !self.meeting.empty());
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  if (size == 0) return 0;
  const auto* const rest = reinterpret_cast<const std::byte*>(data + 1);
  const Bytes bytes(rest, rest + (size - 1));
  fuzz::allow_bad_input(
      [&] {
        switch (data[0]) {
          case 'h':
            return read_hello(bytes);
          case 'p':
            return read_plan(bytes);
          case 'd':
            return read_draft(bytes);
          case 'c':
            return read_context(bytes);
          case 'l': {
            MessageReader from(bytes);
            get_caches(from);
            return;
          }
          case 'v':
            return read_variables(std::string(fuzz::text(data + 1, size - 1)));
          default:
            return;
        }
      },
      ErrorCode::kUnsupported);  // ranks on several hosts
  return 0;
}
