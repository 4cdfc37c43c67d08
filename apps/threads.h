// CPU threads of the program: their number, and how they wait for each other.
//
// OpenMP's threads wait at the end of every parallel loop. By default GCC's OpenMP library lets
// them spin for milliseconds before they sleep; on a machine with other work, that takes the time
// of the thread that they wait for. threads.cc therefore shortens the spinning before the library
// reads its environment.

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

// Call once, before parsing: the number is OMP_NUM_THREADS, else the CPUs that the process may use
// (base/cpu_count.h). Throws kBadInput when OMP_NUM_THREADS is not a number.
void set_default_threads();
// -t/--threads, for every command that computes.
void add_threads(CLI::App& command);
int num_threads();
// For a thread that main() did not start: it would have OpenMP's own default.
void use_threads(int number);
// "2: 4 CPUs in the affinity mask, quota of 1.5 CPUs"
std::string threads_text();
nlohmann::ordered_json threads_json();

}  // namespace dsv4::apps
