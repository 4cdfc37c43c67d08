// What the program does when it is interrupted, or when a mapped file can no longer be read.

#pragma once

namespace dsv4::apps {

// SIGINT, SIGTERM, SIGHUP and SIGPIPE remove the temporary files of unfinished outputs, then end
// the program as they always do. SIGBUS, which follows when a model's file shrinks or its disk
// fails, becomes one line with the file's name and exit code 1.
void install_signal_handlers();

}  // namespace dsv4::apps
