// dsv4 inspect MODEL: architecture, schedule, tensors and ledger of a checkpoint on one screen.

#pragma once

#include <string>

namespace dsv4::apps {

void inspect_model(const std::string& name_or_folder, bool json);

}  // namespace dsv4::apps
