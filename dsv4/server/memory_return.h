// When the memory that requests have freed goes back to the system. The C library keeps what was
// freed for the next allocation, spread over the arenas of its threads, so that a server which once
// read a large body would hold its memory for good.
//
// Memory goes back a second after a body of a MiB or more was read, and once the server has been
// idle for some seconds after any request.

#pragma once

#include <chrono>
#include <cstddef>

namespace dsv4 {

class MemoryReturn {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A body of so many bytes is being read.
  void used(size_t bytes);
  // Whether it is time to call give_back_memory(). `reading`: bodies are read or wait for that;
  // `running`: requests run or wait.
  bool is_due(Time now, bool reading, bool running);

 private:
  bool any_ = false, large_ = false;  // since memory went back
  Time busy_, last_;                  // the server was last busy; memory last went back
};

// Where the C library has a call for it; takes milliseconds. Any thread may call it.
void give_back_memory();

}  // namespace dsv4
