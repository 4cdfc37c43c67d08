// Models that are named ORG/NAME[@REVISION]: in the cache of Hugging Face, or at the hub itself.

#pragma once

#include <optional>
#include <string>

#include "dsv4/hub/http_fetch.h"
#include "dsv4/hub/hub_name.h"

namespace dsv4::apps {

// The folder of a complete model in the cache; a note on stderr says which. Throws kBadInput with
// the command that fetches what is missing.
std::string find_in_hub_cache(const HubName& name);

// What `model` names at the hub, unless the cache has it, a local path is called so, or the user is
// offline.
std::optional<HubName> hub_name_to_fetch(const std::string& model);

// Address and token of the hub, from the environment.
HubPolicy hub_policy();

// One line on stderr, over a progress bar.
void print_notice(const std::string& line);

}  // namespace dsv4::apps
