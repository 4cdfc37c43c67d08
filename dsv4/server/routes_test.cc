#include "dsv4/server/routes.h"

#include <gtest/gtest.h>

#include <set>

#include "dsv4/server/service.h"

namespace dsv4 {
namespace {

const Route kTable[] = {
    {.method = "GET", .path = "/things/{}"},
    {.method = "POST", .path = "/things/{}/end"},
    {.method = "POST", .path = "/things/all"},
    {.method = "GET", .path = "/"},
};

// "INDEX ARGUMENT", "-" where there is none.
std::string found(std::string_view path) {
  const auto route = find_route(kTable, path);
  return route ? fmt::format("{} {}", route->route - kTable, route->argument) : "-";
}

TEST(Routes, AreFoundWithAndWithoutTheVersion) {
  EXPECT_EQ(found("/"), "3 ");
  EXPECT_EQ(found("/v1/"), "3 ");
  EXPECT_EQ(found("/v1"), "-");
  EXPECT_EQ(found("/v1/things/a"), "0 a");
  EXPECT_EQ(found("/v2/things/a"), "-");
}

TEST(Routes, HaveOneArgumentAtMost) {
  EXPECT_EQ(found("/things/a"), "0 a");
  EXPECT_EQ(found("/things/a/b"), "0 a/b");
  EXPECT_EQ(found("/things/a%2Fb%20c"), "0 a/b c");
  EXPECT_EQ(found("/things/"), "-");
  EXPECT_EQ(found("/things"), "-");
  EXPECT_EQ(found("/things/%zz"), "-");
  EXPECT_EQ(found("/things/all"), "2 ");         // a path without an argument comes first
  EXPECT_EQ(found("/things/a/end"), "0 a/end");  // then the order of the table
}

TEST(Routes, TakeTheirMethod) {
  const Route get{.method = "GET"}, post{.method = "POST"};
  EXPECT_TRUE(get.takes("GET") && get.takes("HEAD") && post.takes("POST"));
  EXPECT_FALSE(get.takes("POST") || post.takes("HEAD") || post.takes("OPTIONS"));
  EXPECT_EQ(get.allow(), "GET, HEAD");
  EXPECT_EQ(post.allow(), "POST");
  const Route any{};
  EXPECT_TRUE(any.takes("GET") && any.takes("POST") && any.takes("DELETE"));
}

TEST(Routes, OfTheServerAreReachable) {
  std::set<std::string_view> paths;
  for (const Route& route : Service::routes()) {
    EXPECT_TRUE(paths.insert(route.path).second) << route.path << " twice";
    EXPECT_NE(route.handler, nullptr) << route.path;
    EXPECT_TRUE(route.method == "GET" || route.method == "POST" || route.method.empty())
        << route.path;
    EXPECT_EQ(find_route(Service::routes(), "/v1" + std::string(route.path))->route, &route);
  }
}

// What an operator may do needs an admin key and is never at the clients' port.
TEST(Routes, OfOperatorsAreClosed) {
  for (const Route& route : Service::routes()) {
    const bool admin = route.needs.key == Route::Key::kAdmin;
    EXPECT_FALSE(admin && route.served_at(/*admin_port=*/false)) << route.path;
    EXPECT_FALSE(route.method == "POST" && route.needs.key == Route::Key::kNone) << route.path;
    EXPECT_TRUE(route.served_at(false) || route.served_at(true)) << route.path;
  }
}

}  // namespace
}  // namespace dsv4
