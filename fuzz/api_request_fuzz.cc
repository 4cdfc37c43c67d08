// A request body of the API that the first byte picks: whatever it holds, it becomes a prompt
// within the context or an error with a status, and its answer can be written.

#include "dsv4/server/choice.h"
#include "dsv4/server/json_text.h"
#include "fuzz/fuzz.h"
#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

const ServedModel& model() {
  static const auto served = [] {
    auto one = std::make_unique<ServedModel>(
        std::make_shared<const Tokenizer>(Tokenizer::parse(test::marker_tokenizer_json(), "test")));
    one->names = {"m"};
    one->any_name = true;
    one->limits = {.vocab_size = one->tokenizer->vocab_size(), .context = 8192};
    return one;
  }();
  return *served;
}

void answer(Prepared prepared) {
  Usage usage;
  AnswerContext context = prepared.answer;
  const Times times;
  context.usage = &usage;
  context.times = &times;
  const size_t choices = context.choices;
  const auto writer = make_writer(prepared.api, std::move(context));
  writer->begin();
  for (size_t k = 0; k < choices; ++k) {
    Choice choice(k, prepared, model(), *writer, usage);
    for (const char c : std::string_view("ab\xc3\xa9 \n")) {
      choice.on_token({.id = test::byte_token(c), .logprob = -1.f});
      writer->take();
    }
    choice.on_engine_finish(Finish::kStop);
  }
  writer->end();
  const std::string out = writer->take();
  fuzz::require(prepared.settings.stream || Json::accept(out));
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  using namespace dsv4;
  const auto api = static_cast<Api>(data[0] % kNumApis);
  fuzz::allow_bad_input([&] {
    const std::string key(32, 'k');
    Prepared prepared = prepare(api, std::string(fuzz::text(data + 1, size - 1)), model(), key);
    if (!prepared.ready.empty()) return fuzz::require(Json::accept(prepared.ready));
    fuzz::require(!prepared.prompts.empty());
    for (const auto& prompt : prepared.prompts) {
      fuzz::require(!prompt.empty());
      fuzz::require(static_cast<int64_t>(prompt.size()) + prepared.max_tokens <=
                    model().limits.context);
    }
    for (const std::string& field : prepared.ignored)
      fuzz::require(field.find_first_of("\r\n") == field.npos);
    answer(std::move(prepared));
  });
  return 0;
}
