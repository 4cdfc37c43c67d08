#include "dsv4/hub/curl_library.h"

#include <dlfcn.h>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

// With OpenSSL first; Debian has one with GnuTLS under the second name.
constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

void* open_library() {
  std::string problem;
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    if (problem.empty()) problem = dlerror();
  }
  fail(ErrorCode::kUnsupported,
       "fetching needs libcurl ({}): install the package libcurl4 (Debian, Ubuntu), libcurl "
       "(Fedora) or curl (Arch)",
       problem);
}

template <class Function>
void load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) fail(ErrorCode::kUnsupported, "libcurl.so.4 has no {}", name);
}

CurlLibrary load_library() {
  void* library = open_library();
  CurlLibrary curl;
  load(library, "curl_easy_init", &curl.easy_init);
  load(library, "curl_easy_setopt", &curl.easy_setopt);
  load(library, "curl_easy_perform", &curl.easy_perform);
  load(library, "curl_easy_getinfo", &curl.easy_getinfo);
  load(library, "curl_easy_cleanup", &curl.easy_cleanup);
  load(library, "curl_easy_reset", &curl.easy_reset);
  load(library, "curl_easy_strerror", &curl.easy_strerror);
  load(library, "curl_slist_append", &curl.slist_append);
  load(library, "curl_slist_free_all", &curl.slist_free_all);
  load(library, "curl_getdate", &curl.getdate);
  decltype(&::curl_global_init) global_init = nullptr;
  load(library, "curl_global_init", &global_init);
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    fail(ErrorCode::kUnsupported, "libcurl.so.4 cannot be initialized");
  return curl;
}

}  // namespace

const CurlLibrary& CurlLibrary::get() {
  static const CurlLibrary curl = load_library();
  return curl;
}

}  // namespace dsv4
