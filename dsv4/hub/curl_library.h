// libcurl, loaded when something is first fetched (docs/adr/0028): a program that fetches nothing
// starts without it, and runs where it is not installed.

#pragma once

#define CURL_DISABLE_TYPECHECK    // its macros hide the functions
#define CURL_DISABLE_DEPRECATION  // CURLOPT_PROTOCOLS is the form that old versions know as well
#include <curl/curl.h>

namespace dsv4 {

struct CurlLibrary {
  // Throws kUnsupported, with the packages that have it, where it is missing.
  static const CurlLibrary& get();

  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_easy_reset) easy_reset = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
  decltype(&::curl_getdate) getdate = nullptr;
};

}  // namespace dsv4
