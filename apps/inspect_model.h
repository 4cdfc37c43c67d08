// dsv4 inspect MODEL: architecture, schedule, tensors and ledger of a checkpoint on one screen.
// Everything that `run` reads before its first token is read and checked here too.

#pragma once

#include <string>

namespace dsv4::apps {

// verify: every value of every tensor is read; throws kBadInput after the report when one of them
// is NaN or infinite.
void inspect_model(const std::string& name_or_folder, bool json, bool verify);

}  // namespace dsv4::apps
