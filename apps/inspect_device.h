// dsv4 inspect device: the GPUs of this machine, and whether this program can use them.

#pragma once

namespace dsv4::apps {

void inspect_device(bool json);

}  // namespace dsv4::apps
