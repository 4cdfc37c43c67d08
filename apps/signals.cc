#include "apps/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "dsv4/base/atomic_file.h"

namespace dsv4::apps {
namespace {

// Handlers may call only functions that POSIX lists as async-signal-safe: no allocation, no stdio.

void write_text(const char* text, size_t size) {
  while (size > 0) {
    const ssize_t done = write(STDERR_FILENO, text, size);
    if (done < 0 && errno != EINTR) return;
    if (done < 0) continue;
    text += done;
    size -= static_cast<size_t>(done);
  }
}

void write_text(const char* text) {
  write_text(text, std::strlen(text));
}

// Parses hexadecimal digits at `at` and moves it past them.
uintptr_t read_hex(const char*& at, const char* end) {
  uintptr_t value = 0;
  for (; at < end; ++at) {
    const char c = *at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) break;
    value = value << 4 | static_cast<uintptr_t>(digit);
  }
  return value;
}

// A line of /proc/self/maps is "from-to perms offset dev inode   path". Prints the path and returns
// true if the address lies in the range.
bool write_path_if_at(char* line, char* end, uintptr_t address) {
  const char* at = line;
  const uintptr_t from = read_hex(at, end);
  if (at == end || *at++ != '-') return false;
  const uintptr_t to = read_hex(at, end);
  char* path = static_cast<char*>(memchr(line, '/', static_cast<size_t>(end - line)));
  if (address < from || address >= to || path == nullptr) return false;
  for (char* c = path; c < end; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f) *c = '?';
  }
  write_text(path, static_cast<size_t>(end - path));
  return true;
}

void write_mapped_file_at(uintptr_t address) {
  static char buffer[1 << 16];
  size_t have = 0;
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  while (file >= 0) {
    const ssize_t got = read(file, buffer + have, sizeof(buffer) - have);
    if (got <= 0) break;
    have += static_cast<size_t>(got);
    char* begin = buffer;
    for (char* end; (end = static_cast<char*>(memchr(
                         begin, '\n', static_cast<size_t>(buffer + have - begin)))) != nullptr;
         begin = end + 1) {
      if (write_path_if_at(begin, end, address)) return;
    }
    have = static_cast<size_t>(buffer + have - begin);
    std::memmove(buffer, begin, have);
  }
  write_text("a mapped file");
}

void on_bus_error(int, siginfo_t* info, void*) {
  // Only the first of several threads reports.
  static volatile sig_atomic_t reported = 0;
  if (reported == 0) {
    reported = 1;
    remove_temporary_files();
    write_text("dsv4: cannot read ");
    write_mapped_file_at(reinterpret_cast<uintptr_t>(info->si_addr));
    write_text(": the file shrank or its disk failed while it was in use\n");
  }
  _exit(1);
}

void on_interrupt(int signal) {
  remove_temporary_files();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction bus {};
  bus.sa_sigaction = on_bus_error;
  bus.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &bus, nullptr);
  // A file that outgrows `ulimit -f` is then an error of write(), which names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;  // nohup, or a background job of a plain shell
    struct sigaction interrupt {};
    interrupt.sa_handler = on_interrupt;
    sigaction(signal, &interrupt, nullptr);
  }
}

}  // namespace dsv4::apps
