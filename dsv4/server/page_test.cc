// The files of the chat page as the build made them, and how they are served. What the page does in
// a browser is tested by tools/serve/check_page.py.

#include "dsv4/server/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

namespace dsv4 {
namespace {

std::string text_of_file(std::string_view name) {
  for (const PageFile& file : page_files()) {
    if (file.name == name) return plain_bytes(file);
  }
  ADD_FAILURE() << "the page has no file " << name;
  return "";
}

// What stands in the first group of every match.
std::set<std::string> found(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> out;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    out.insert(at->str(1));
  return out;
}

bool has_file(const std::string& name) {
  return std::any_of(page_files().begin(), page_files().end(),
                     [&](const PageFile& file) { return file.name == name; });
}

HttpResponse get(std::string_view name, HttpHeaders headers) {
  auto response = page_response(name, {.method = "GET", .headers = std::move(headers)});
  EXPECT_TRUE(response) << name;
  return response.value_or(HttpResponse{.status = 0});
}

std::string header(const HttpResponse& response, std::string_view name) {
  for (const auto& [one, value] : response.headers) {
    if (one == name) return value;
  }
  return "";
}

TEST(PageFiles, AreWholeAndSmall) {
  size_t total = 0;
  for (const PageFile& file : page_files()) {
    total += file.bytes.size();
    const std::string plain = plain_bytes(file);
    EXPECT_GT(plain.size(), 100u) << file.name;
    EXPECT_EQ(file.compressed, plain.size() > file.bytes.size()) << file.name;
    EXPECT_EQ(file.name.ends_with(".woff2"), plain.starts_with("wOF2")) << file.name;
  }
  EXPECT_LT(total, 1'000'000u) << "of the program's size";
  EXPECT_TRUE(text_of_file("page.html").starts_with("<!doctype html>"));
  EXPECT_TRUE(text_of_file("page.html").ends_with("</html>\n"));
}

TEST(PageFiles, EveryFileThatIsNamedIsThere) {
  const auto in_page = found(text_of_file("page.html"), "(?:src|href)=\"/page/([^\"]+)\"");
  EXPECT_EQ(in_page, (std::set<std::string>{"app.js", "icon.svg", "licenses.txt", "page.css"}));
  for (const std::string& name : in_page) EXPECT_TRUE(has_file(name)) << name;
  const auto imported = found(text_of_file("app.js"), "import\\(\"\\./([a-z]+\\.js)\"\\)");
  EXPECT_EQ(imported, (std::set<std::string>{"code.js", "math.js"}));
  for (const std::string& name : imported) EXPECT_TRUE(has_file(name)) << name;
  EXPECT_NE(text_of_file("app.js").find("/page/katex.css"), std::string::npos);
  const auto fonts = found(text_of_file("katex.css"), "url\\((fonts/[A-Za-z0-9_-]+\\.woff2)\\)");
  EXPECT_EQ(fonts.size(), 20u);
  for (const std::string& name : fonts) EXPECT_TRUE(has_file(name)) << name;
}

// The policy would refuse all of this; it must not be there in the first place.
TEST(PageFiles, NothingIsInlineOrFromElsewhere) {
  const std::string page = text_of_file("page.html");
  EXPECT_TRUE(found(page, "(<style|\\sstyle=|\\son[a-z]+=|javascript:|<script>|data:)").empty());
  for (const char* name : {"page.html", "page.css", "katex.css"}) {
    EXPECT_TRUE(found(text_of_file(name), "((?:src|href)=\"(?!/)[^\"]*|url\\(.?[a-z]*:?//|@import)")
                    .empty())
        << name;
  }
}

TEST(PageFiles, LicensesOfTheLibrariesAreListed) {
  const std::string licenses = text_of_file("licenses.txt");
  for (const char* text :
       {"Upstream-Name: markdown-it", "Files: linkify-it", "Upstream-Name: dompurify",
        "Upstream-Name: katex", "SIL OPEN FONT LICENSE", "highlight.js",
        "Permission is hereby granted", "Redistributions in binary form", "Apache License"}) {
    EXPECT_NE(licenses.find(text), std::string::npos) << text;
  }
}

TEST(PageResponse, ThePolicyAllowsThisServersFilesOnly) {
  const HttpResponse page = get("page.html", {});
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_EQ(
      header(page, "Content-Security-Policy"),
      "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types dompurify");
  EXPECT_EQ(header(page, "Referrer-Policy"), "no-referrer");
}

TEST(PageResponse, IsCompressedForClientsThatTakeGzip) {
  const std::string plain = text_of_file("app.js");
  for (const char* accepted : {"gzip", "gzip, deflate, br", "br;q=1.0, GZIP ; q=0.5"}) {
    const HttpResponse response = get("app.js", {{"accept-encoding", accepted}});
    EXPECT_EQ(header(response, "Content-Encoding"), "gzip") << accepted;
    EXPECT_TRUE(response.body.starts_with("\x1f\x8b")) << accepted;
    EXPECT_EQ(header(response, "Vary"), "Accept-Encoding");
  }
  for (const char* accepted :
       {"", "br", "identity", "gzip;q=0", "gzip;q=0.0, br", "xgzip", "gzipped"}) {
    const HttpResponse response = get("app.js", {{"accept-encoding", accepted}});
    EXPECT_EQ(header(response, "Content-Encoding"), "") << accepted;
    EXPECT_EQ(response.body, plain) << accepted;
  }
  EXPECT_EQ(header(get("fonts/KaTeX_Main-Regular.woff2", {{"accept-encoding", "gzip"}}),
                   "Content-Encoding"),
            "");
}

TEST(PageResponse, AFileThatTheClientHasIsNotSentAgain) {
  std::set<std::string> tags;
  for (const PageFile& file : page_files()) tags.insert(header(get(file.name, {}), "ETag"));
  EXPECT_EQ(tags.size(), page_files().size());
  const std::string plain = header(get("app.js", {}), "ETag");
  const std::string compressed = header(get("app.js", {{"accept-encoding", "gzip"}}), "ETag");
  EXPECT_NE(plain, compressed);
  const HttpResponse again = get("app.js", {{"if-none-match", "\"other\", " + plain}});
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.body, "");
  EXPECT_EQ(get("app.js", {{"if-none-match", compressed}}).status, 200);
}

TEST(PageResponse, OnlyFilesOfThePageAreServed) {
  for (const char* name : {"", "app", "../page.cc", "page.css/", "/page.css", "fonts"})
    EXPECT_FALSE(page_response(name, {})) << name;
}

}  // namespace
}  // namespace dsv4
