// What Ollama's routes say of the models of this server. There is one, under each of its names; it
// is in memory as long as the server runs, and nothing pulls, copies or deletes it.

#pragma once

#include <string>

#include "dsv4/server/json_text.h"
#include "dsv4/server/served_model.h"

namespace dsv4 {

// The release of Ollama whose API this is: clients require a minimum version before they
// use tools or thinking.
inline constexpr const char* kOllamaVersion = "0.12.6";

// GET /api/tags: a model under each name.
Json ollama_tags(const ServedModel& model);
// GET /api/ps: every name of the model, as loaded.
Json ollama_running(const ServedModel& model);
// POST /api/show; RequestError 404 where the body names another model.
std::string ollama_show(const std::string& body, const ServedModel& model,
                        const std::string& seal_key);
// The answer to a body without text (ollama_load_reason()).
std::string ollama_loaded(const std::string& model, const std::string& reason, bool is_chat);

}  // namespace dsv4
