// Which fields of a request have an effect (docs/spec/serving.md 3.2). Every other field is named
// in the answer's warning, at any depth, or refused where it would change what the answer may be.

#pragma once

#include <string>
#include <vector>

#include "dsv4/chat/json_value.h"
#include "dsv4/server/settings.h"

namespace dsv4 {

// Fields of a body that have no effect, as "store" or "messages[].name", each once. RequestError
// for fields that must not be there, and in strict mode for those that the API does not have. Null,
// false and empty values change nothing and are never named.
std::vector<std::string> ignored_fields(const JsonValue& body, Api api, bool strict);

// The value of x-dsv4-warning: the first of them, so that a body cannot make a long header.
std::string warning_of(const std::vector<std::string>& ignored);

}  // namespace dsv4
