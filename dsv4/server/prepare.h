// From the body of a request to what the engine gets: everything that can be checked before a
// request waits in the queue. Runs on a worker thread, since a long prompt takes a while to
// tokenize.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsv4/chat/prompt.h"
#include "dsv4/engine/token_constraint.h"
#include "dsv4/server/answer.h"
#include "dsv4/server/served_model.h"

namespace dsv4 {

struct Prepared {
  Api api = Api::kChat;
  std::vector<std::vector<int32_t>> prompts;  // ids; settings.n choices of each
  ParserOptions parser;
  Settings settings;
  std::vector<int32_t> prediction;              // ids of settings.prediction
  std::shared_ptr<TokenConstraint> constraint;  // of every choice; null: none
  int64_t max_tokens = 0;                       // of a choice
  bool fills_context = false;                   // max_tokens is all that the context has left
  bool is_chat = false;                         // the output is parsed, else it is text
  bool continues = false;                       // an answer that the client began
  std::vector<std::string> ignored;             // for the header x-dsv4-warning
  std::string ready;  // the body of the answer where it needs no engine; then nothing else is set
  AnswerContext answer;  // without what the generation adds
};

// RequestError, also where the prompt does not fit the context. `seal_key`: of seal.h. `owner`:
// requests of different owners share nothing that is stored; empty: the request's salt decides.
Prepared prepare(Api api, const std::string& body, const ServedModel& model,
                 const std::string& seal_key, const std::string& owner = {});

// RequestError where a text of so many bytes cannot fit the context, whatever it says: then it need
// not keep a worker busy. `param`: the field that has it.
void require_room(size_t bytes, const ServedModel& model, const std::string& param);

// The prompt of a body that is a chat, in any API.
std::vector<int32_t> prompt_ids(Api api, const JsonValue& body, const ServedModel& model,
                                const std::string& seal_key, Prompt* prompt = nullptr);

// The model that the body names; RequestError 404 where this server has none of that name.
// Ollama's clients write NAME:latest for a NAME without a tag.
std::string model_name(const JsonValue& body, const ServedModel& model, Api api = Api::kChat);

std::unique_ptr<AnswerWriter> make_writer(Api api, AnswerContext context);

}  // namespace dsv4
