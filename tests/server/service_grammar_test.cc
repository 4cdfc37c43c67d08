// Constrained answers of the bundled model over loopback: every answer that ends is of its format,
// forced calls parse, and what is not supported is refused. The model knows nothing of JSON, so
// what comes out right is the masks' work.

#include <gtest/gtest.h>

#include <future>

#include "dsv4/grammar/schema_grammar.h"
#include "dsv4/server/answer_constraint.h"
#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

ScriptedServer& model_server() {
  static ScriptedServer one("", {.max_sequences = 8});
  return one;
}

json schema_format(const json& schema, bool strict = false) {
  return {{"type", "json_schema"},
          {"json_schema", {{"name", "answer"}, {"schema", schema}, {"strict", strict}}}};
}

json format_body(const json& format, uint64_t seed, int n = 1) {
  json body = chat_body("Reply in json: tell me of a farm.");
  body["response_format"] = format;
  body["seed"] = seed;
  body["n"] = n;
  body["max_tokens"] = 80;
  return body;
}

bool is_string_below(const json& value, size_t length) {
  return value.is_string() && value.get<std::string>().size() <= length;
}

struct Format {
  const char* name;
  json schema;
  std::function<bool(const json&)> valid;
};

// Validity is checked by hand, not by the code that made the masks. Lengths are bounded, so that
// most answers end.
const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"object",
       {{"type", "object"},
        {"properties",
         {{"name", {{"type", "string"}, {"maxLength", 12}}},
          {"age", {{"type", "integer"}, {"minimum", 3}, {"maximum", 120}}},
          {"kind", {{"enum", {"cat", "dog", 7}}}}}},
        {"required", {"name", "age"}},
        {"additionalProperties", false}},
       [](const json& v) {
         const bool kind =
             !v.contains("kind") || v["kind"] == "cat" || v["kind"] == "dog" || v["kind"] == 7;
         return v.is_object() && is_string_below(v.at("name"), 48) && kind &&
                v.at("age").is_number_integer() && v["age"] >= 3 && v["age"] <= 120;
       }},
      {"array",
       {{"type", "array"}, {"items", {{"type", "boolean"}}}, {"minItems", 2}, {"maxItems", 4}},
       [](const json& v) {
         return v.is_array() && v.size() >= 2 && v.size() <= 4 &&
                std::all_of(v.begin(), v.end(), [](const json& x) { return x.is_boolean(); });
       }},
      {"recursive",
       {{"$defs",
         {{"node",
           {{"type", "object"},
            {"properties",
             {{"value", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}},
              {"next", {{"anyOf", {{{"$ref", "#/$defs/node"}}, {{"type", "null"}}}}}}}},
            {"required", {"value", "next"}},
            {"additionalProperties", false}}}}},
        {"$ref", "#/$defs/node"}},
       [](const json& v) {
         const json* at = &v;
         for (; at->is_object(); at = &at->at("next"))
           if (!at->at("value").is_number_integer() || at->size() != 2) return false;
         return at->is_null();
       }},
      {"pattern",
       {{"type", "object"},
        {"properties",
         {{"id", {{"type", "string"}, {"pattern", "^[a-f]{2}-[0-9]{3}$"}}},
          {"day", {{"type", "string"}, {"format", "date"}}}}},
        {"required", {"id", "day"}},
        {"additionalProperties", false}},
       [](const json& v) {
         const std::string id = v.at("id"), day = v.at("day");
         return id.size() == 6 && id[2] == '-' && day.size() == 10 && day[4] == '-';
       }},
  };
  return all;
}

std::string content_of(const json& choice) {
  return choice["message"]["content"].is_null() ? "" : std::string(choice["message"]["content"]);
}

std::vector<json> choices_of(const Answer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  const json body = answer.json();
  EXPECT_FALSE(body.is_discarded()) << "the answer took too long";
  return body.is_object() ? body["choices"].get<std::vector<json>>() : std::vector<json>();
}

TEST(ServiceGrammar, EveryAnswerThatEndsIsValid) {
  for (const Format& format : formats()) {
    int ended = 0;
    for (const bool strict : {false, true}) {
      const Answer answer =
          model_server().chat(format_body(schema_format(format.schema, strict), 1, 2));
      for (const json& choice : choices_of(answer)) {
        if (choice["finish_reason"] != "stop") continue;
        ++ended;
        const json value = json::parse(content_of(choice), nullptr, false);
        EXPECT_TRUE(!value.is_discarded() && format.valid(value)) << format.name << choice;
        if (strict) {
          EXPECT_EQ(content_of(choice).find('\n'), std::string::npos);
        }
      }
    }
    EXPECT_GT(ended, 1) << format.name << ": the case tests little";
  }
}

TEST(ServiceGrammar, JsonObjectRegexAndChoice) {
  json body = format_body({{"type", "json_object"}}, 3, 2);
  for (const json& choice : choices_of(model_server().chat(body))) {
    EXPECT_TRUE(content_of(choice).starts_with("{")) << choice;
    if (choice["finish_reason"] == "stop") {
      EXPECT_TRUE(json::parse(content_of(choice)).is_object());
    }
  }
  body = format_body({{"type", "regex"}, {"pattern", "[0-9]{4}-(spring|fall)"}}, 4);
  const json regex = model_server().choice(body);
  EXPECT_EQ(regex["finish_reason"], "stop");
  EXPECT_TRUE(content_of(regex).ends_with("spring") || content_of(regex).ends_with("fall"));
  body = chat_body("Yes or no?");
  body["guided_choice"] = {"yes (sure)", "no [never]"};
  const std::string chosen = content_of(model_server().choice(body));
  EXPECT_TRUE(chosen == "yes (sure)" || chosen == "no [never]") << chosen;
  for (const bool nested : {false, true}) {
    const char* const grammar = "root ::= item (\", \" item)* \".\"\nitem ::= [a-c]{2} | \"dd\"";
    json described = chat_body("List some.");
    described["seed"] = 5;
    described["max_tokens"] = 60;
    if (nested) {
      described["structured_outputs"] = {{"grammar", grammar}};
    } else {
      described["guided_grammar"] = grammar;
    }
    for (const json& choice : choices_of(model_server().post("/v1/chat/completions", described))) {
      const std::string listed = content_of(choice);
      if (choice["finish_reason"] != "stop") continue;
      EXPECT_TRUE(listed.ends_with(".") && listed.size() % 4 == 3) << listed;
      EXPECT_EQ(listed.find_first_not_of("abcd, ."), listed.npos) << listed;
    }
  }
  json wrong = chat_body("x");
  wrong["guided_grammar"] = "root ::= missing";
  const json refused = model_server().post("/v1/chat/completions", wrong).json()["error"];
  EXPECT_EQ(refused["code"], "unsupported_grammar");
  EXPECT_EQ(refused["param"], "guided_grammar") << "the client's field";
  wrong = chat_body("x");
  wrong["structured_outputs"] = {{"regex", "(a"}};
  EXPECT_EQ(model_server().post("/v1/chat/completions", wrong).json()["error"]["param"],
            "structured_outputs.regex");
  const json text = {{"prompt", "Once"}, {"guided_regex", "[a-c]{5}"}, {"max_tokens", 20}};
  const json completion = model_server().post("/v1/completions", text).json()["choices"][0];
  EXPECT_EQ(completion["text"].get<std::string>().size(), 5u) << completion;
}

// One seed, alone and with three others, whole and streamed.
TEST(ServiceGrammar, AnswersDoNotDependOnOtherRequests) {
  const auto answer = [](uint64_t seed) {
    const Format& format = formats()[seed % formats().size()];
    return content_of(
        model_server().chat(format_body(schema_format(format.schema), seed)).json()["choices"][0]);
  };
  std::vector<std::string> single;
  for (uint64_t seed = 0; seed < 4; ++seed) single.push_back(answer(seed));
  std::vector<std::future<std::string>> many;
  for (uint64_t seed = 0; seed < 4; ++seed) many.push_back(std::async(answer, seed));
  for (uint64_t seed = 0; seed < 4; ++seed) EXPECT_EQ(many[seed].get(), single[seed]);
  json body = format_body(schema_format(formats()[0].schema), 0);
  body["stream"] = true;
  std::string streamed;
  for (const auto& event : events_of(model_server().chat(body).body)) {
    if (event.data == "[DONE]") continue;
    const json chunk = event.json();
    for (const json& choice : chunk["choices"]) streamed += choice["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, single[0]);
}

// A mask for each token of a constrained answer, and none for others.
TEST(ServiceGrammar, MasksAreCountedAndTimed) {
  ScriptedServer one("", {.context = 512});
  const auto masks = [&] { return metric(one.port(), "dsv4_grammar_masks_total"); };
  const auto seconds = [&] { return metric(one.port(), "dsv4_grammar_mask_seconds_total"); };
  json body = chat_body("Hi");
  body["max_tokens"] = 5;
  EXPECT_EQ(one.chat(body).status, 200);
  EXPECT_EQ(masks(), 0);
  EXPECT_EQ(seconds(), 0);
  body["response_format"] = {{"type", "regex"}, {"regex", "[a-z]{40,60}"}};
  const json usage = one.chat(body).json()["usage"];
  for (int i = 0; i < 200 && masks() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(masks(), usage["completion_tokens"].get<double>());
  EXPECT_GT(seconds(), 0);
  EXPECT_LT(seconds(), 5);
}

TEST(ServiceGrammar, StopStringsCutConstrainedAnswers) {
  json body = format_body(schema_format(formats()[0].schema), 5);
  body["stop"] = "\"age";
  const json choice = model_server().choice(body);
  EXPECT_EQ(choice["stop_reason"], "\"age");
  EXPECT_EQ(content_of(choice).find("\"age"), std::string::npos);
}

TEST(ServiceGrammar, AContinuedAnswerGoesOnInTheGrammar) {
  json body = format_body(schema_format(formats()[1].schema), 6);
  body["messages"].push_back({{"role", "assistant"}, {"content", "[true, "}, {"prefix", true}});
  int ended = 0;
  for (int seed = 6; seed < 26 && ended == 0; ++seed) {  // some answers end at max_tokens
    body["seed"] = seed;
    const json choice = model_server().choice(body);
    if (choice["finish_reason"] != "stop") continue;
    ++ended;
    EXPECT_TRUE(formats()[1].valid(json::parse("[true, " + content_of(choice)))) << choice;
  }
  EXPECT_EQ(ended, 1);
  body["messages"].back()["content"] = "No json";
  EXPECT_EQ(model_server().chat(body).status, 400);
}

json tools() {
  const json get = {{"name", "get_weather"},
                    {"parameters",
                     {{"type", "object"},
                      {"properties",
                       {{"city", {{"type", "string"}, {"enum", {"Oslo", "Rome"}}}},
                        {"days", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}}}},
                      {"required", {"city", "days"}}}}};
  // Not in the subset of schemas: tags and names only.
  const json other = {{"name", "note"},
                      {"parameters",
                       {{"type", "object"},
                        {"properties", {{"tags", {{"type", "array"}, {"uniqueItems", true}}}}}}}};
  return {{{"type", "function"}, {"function", get}}, {{"type", "function"}, {"function", other}}};
}

json tool_body(const json& choice, bool thinking) {
  json body = chat_body("The weather?");
  body["tools"] = tools();
  body["tool_choice"] = choice;
  body["thinking"] = {{"type", thinking ? "enabled" : "disabled"}};
  body["max_tokens"] = 180;
  body["seed"] = 2;
  return body;
}

TEST(ServiceGrammar, ForcedCallsParse) {
  const json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  int calls = 0;
  for (const bool thinking : {false, true}) {
    json body = tool_body(named, thinking);
    body["n"] = 2;
    if (thinking) {  // the end of the thinking, which this model rarely writes
      const MarkerIds markers(*demo_text()->tokenizer);
      body["logit_bias"] = {{std::to_string(*markers.id(Marker::kThinkEnd)), 100}};
    }
    const Answer answer = model_server().chat(body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    for (const json& choice : choices_of(answer)) {
      if (choice["finish_reason"] == "length") continue;
      ASSERT_EQ(choice["finish_reason"], "tool_calls") << choice;
      ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
      const json& function = choice["message"]["tool_calls"][0]["function"];
      EXPECT_EQ(function["name"], "get_weather");
      const json arguments = json::parse(function["arguments"].get<std::string>());
      EXPECT_TRUE(arguments.at("city") == "Oslo" || arguments["city"] == "Rome") << choice;
      EXPECT_TRUE(arguments.at("days") >= 1 && arguments["days"] <= 9) << choice;
      ++calls;
    }
  }
  EXPECT_GT(calls, 2);
}

TEST(ServiceGrammar, RequiredCallsParseWhateverTheSchema) {
  json body = tool_body("required", false);
  body["n"] = 2;
  body["parallel_tool_calls"] = false;
  int calls = 0;
  for (const json& choice : choices_of(model_server().chat(body))) {
    if (choice["finish_reason"] == "length") continue;
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    for (const json& call : choice["message"]["tool_calls"]) {
      EXPECT_TRUE(json::parse(call["function"]["arguments"].get<std::string>()).is_object());
      ++calls;
    }
  }
  EXPECT_GT(calls, 0);
}

// All tools are in the prompt, and only the allowed one can be called.
TEST(ServiceGrammar, OnlyAllowedToolsAreCalled) {
  const json name = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  int calls = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    json body =
        tool_body({{"type", "allowed_tools"},
                   {"allowed_tools", {{"mode", "required"}, {"tools", json::array({name})}}}},
                  false);
    body["seed"] = seed;
    for (const json& choice : choices_of(model_server().chat(body))) {
      for (const json& call : choice["message"].value("tool_calls", json::array())) {
        EXPECT_EQ(call["function"]["name"], "get_weather");
        ++calls;
      }
    }
  }
  EXPECT_GT(calls, 0);
  json unknown = tool_body("auto", false);
  unknown["tool_choice"] = {
      {"type", "allowed_tools"},
      {"allowed_tools",
       {{"tools", json::array({{{"type", "function"}, {"function", {{"name", "none"}}}}})}}}};
  EXPECT_EQ(model_server().chat(unknown).status, 400);
}

// After the budget the only token is the end of the thinking; then the answer goes on, free or in
// its grammar.
TEST(ServiceGrammar, AThinkingBudgetEndsTheThinking) {
  json plain = chat_body("Tell me of a farm.");
  json format = format_body(schema_format(formats()[1].schema), 4);
  json call = tool_body("required", true);
  for (json* body : {&plain, &format, &call}) {
    (*body)["max_tokens"] = 120;
    (*body)["seed"] = 3;
    (*body)["thinking"] = {{"type", "enabled"}, {"budget_tokens", 7}};
    // The model would not write it by itself.
    const MarkerIds markers(*demo_text()->tokenizer);
    (*body)["logit_bias"] = {{std::to_string(*markers.id(Marker::kThinkEnd)), -100}};
    const json answer = model_server().chat(*body).json();
    EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 7) << answer;
    EXPECT_GT(answer["usage"]["completion_tokens"], 8) << answer;
  }
  const json messages = {{"messages", json::array({user("Tell me of a farm.")})},
                         {"max_tokens", 40},
                         {"temperature", 0},
                         {"thinking", {{"type", "enabled"}, {"budget_tokens", 5}}}};
  const json blocks = model_server().post("/v1/messages", messages).json()["content"];
  ASSERT_EQ(blocks.size(), 2u) << blocks;
  EXPECT_EQ(blocks[0]["type"], "thinking");
  EXPECT_EQ(blocks[1]["type"], "text");
}

// A grammar that reads its text in very many ways is answered where its stacks are few sets, and is
// the client's error where they are not: never the server's, and found before it takes a place.
TEST(ServiceGrammar, AmbiguousGrammarsEndOrAreRefused) {
  json body = chat_body("Say something.");
  body["max_tokens"] = 40;
  body["structured_outputs"] = {
      {"grammar", "root ::= s\ns ::= . s s s s | . s s s | . s s | . s | . | \"J_I\""}};
  EXPECT_EQ(model_server().chat(body).status, 200);
  std::string grammar = "root ::= a0";
  for (int i = 0; i < 700; ++i) {
    const auto rule = [&](int by, int plus) { return "a" + std::to_string((i * by + plus) % 700); };
    grammar += "\na" + std::to_string(i) + " ::= [a-z] " + rule(7, 1) + " " + rule(13, 5) + " \"" +
               std::to_string(i) + "\" | [a-z] " + rule(31, 2) + " | [a-z] " + rule(101, 3) +
               " | \"x\"";
  }
  body["structured_outputs"] = {{"grammar", grammar}};
  const Answer refused = model_server().chat(body);
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_EQ(refused.json()["error"]["code"], "unsupported_grammar");
  EXPECT_NE(refused.body.find("too ambiguous"), std::string::npos) << refused.body;
}

TEST(ServiceGrammar, ASeedOfMinusOneIsRandom) {
  json body = chat_body("Hi");
  body["max_tokens"] = 2;
  body["seed"] = -1;
  EXPECT_EQ(model_server().chat(body).status, 200);
  body["seed"] = -2;
  EXPECT_EQ(model_server().chat(body).status, 400);
}

TEST(ServiceGrammar, RefusesWhatIsNotSupported) {
  const auto refused = [](json body) {
    const Answer answer = model_server().chat(body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"];
  };
  const json dynamic = {{"$dynamicRef", "#"}};
  json error = refused(format_body(schema_format(dynamic), 1));
  EXPECT_EQ(error["code"], "unsupported_schema");
  EXPECT_EQ(error["param"].get<std::string>().substr(0, 15), "response_format") << error;
  EXPECT_NE(error["message"].get<std::string>().find("$dynamicRef"), std::string::npos);
  EXPECT_EQ(refused(format_body({{"type", "regex"}, {"pattern", "(?=a)"}}, 1))["code"],
            "unsupported_schema");
  json strict = tool_body("auto", false);
  strict["tools"][1]["function"]["strict"] = true;
  EXPECT_EQ(refused(strict)["code"], "unsupported_schema");
  const json lenient = tool_body("auto", false);
  EXPECT_EQ(model_server().chat(lenient).status, 200);
}

TEST(ServiceSampling, FieldsReachTheModel) {
  json body = {{"prompt", "Once upon a time"},
               {"max_tokens", 6},
               {"temperature", 0},
               {"logprobs", 3},
               {"logit_bias", {{"42", 100}}}};
  const json forced = model_server().post("/v1/completions", body).json()["choices"][0];
  const std::string token(demo_text()->tokenizer->token_bytes(42));
  std::string expected;
  for (int i = 0; i < 6; ++i) expected += token;
  EXPECT_EQ(forced["text"], expected);
  ASSERT_EQ(forced["logprobs"]["top_logprobs"].size(), 6u);
  EXPECT_EQ(forced["logprobs"]["top_logprobs"][0].size(), 4u) << "three and the chosen one";
  json chat = chat_body("Tell me a story.");
  chat.update({{"temperature", 0}, {"max_tokens", 40}, {"logprobs", true}, {"top_logprobs", 5}});
  const json plain = model_server().choice(chat);
  const json& top = plain["logprobs"]["content"][0]["top_logprobs"];
  ASSERT_EQ(top.size(), 5u);
  EXPECT_EQ(top[0]["token"], plain["logprobs"]["content"][0]["token"]);  // greedy
  chat["frequency_penalty"] = 2;
  EXPECT_NE(model_server().choice(chat)["message"], plain["message"]);
}

// Calls that are not forced: text and thinking are free, and a call that was begun is of the
// grammar, wherever it begins.
TEST(AnswerConstraint, FollowsCallsInFreeText) {
  const auto model = demo_text();
  model->limits = {.vocab_size = model->tokenizer->vocab_size(), .context = 1000, .eos = {1}};
  Conversation conversation;
  conversation.tools = {{.name = "get"}};
  const Tokenizer& tokenizer = *model->tokenizer;
  std::vector<uint32_t> mask(static_cast<size_t>((model->limits.vocab_size + 31) / 32));
  for (const OutputStage stage : {OutputStage::kContent, OutputStage::kReason}) {
    const auto constraint = answer_constraint(*model, conversation, stage, false);
    ASSERT_NE(constraint, nullptr);
    TokenConstraint::State state = constraint->start();
    const auto read = [&](std::string_view text) {
      for (const int32_t token : tokenizer.encode(text)) {
        if (constraint->restricts(state)) {
          constraint->mask(state, mask);
          EXPECT_TRUE(mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) << text;
        }
        state = constraint->advance(state, token);
      }
    };
    read("Some text </｜DSML｜ and < and <b>");
    EXPECT_FALSE(constraint->restricts(state));
    read("\n\n<｜DSML｜");
    ASSERT_TRUE(constraint->restricts(state));
    read("tool_calls>\n<｜DSML｜invoke name=\"get\">\n");
    EXPECT_EQ(constraint->advance(state, tokenizer.encode("x")[0]), TokenConstraint::kEnded);
    read(
        "<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n");
    read("</｜DSML｜tool_calls>");
    constraint->mask(state, mask);  // the end of the sentence and nothing else
    EXPECT_EQ(mask[0], 2u);
    EXPECT_TRUE(std::all_of(mask.begin() + 1, mask.end(), [](uint32_t w) { return w == 0; }));
  }
  model->tool_grammar = ToolGrammar::kOff;
  EXPECT_EQ(answer_constraint(*model, conversation, OutputStage::kContent, false), nullptr);
}

TEST(AnswerConstraint, CompilesAGrammarOnce) {
  const auto model = demo_text();
  model->limits = {.vocab_size = model->tokenizer->vocab_size(), .context = 1000, .eos = {1}};
  int made = 0;
  const auto make = [&] {
    ++made;
    return json_object_grammar();
  };
  const auto first = model->grammars.get(model->limits, "a", make);
  EXPECT_EQ(model->grammars.get(model->limits, "a", make), first);
  const int others = static_cast<int>(GrammarLimits{}.kept) + 6;
  for (int i = 0; i < others; ++i) model->grammars.get(model->limits, std::to_string(i), make);
  EXPECT_EQ(made, 1 + others);
  EXPECT_NE(model->grammars.get(model->limits, "a", make), first) << "nothing is ever dropped";
}

}  // namespace
}  // namespace dsv4::test
