// Runs the dsv4 program like a user: a command line, its exit code and its output.

#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "dsv4/base/error.h"

namespace dsv4::test {

struct CliResult {
  int exit_code = -1;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  Cli() {
    folder_ =
        std::filesystem::temp_directory_path() /
        fmt::format("dsv4_cli_{}_{}", testing::UnitTest::GetInstance()->random_seed(), getpid());
    std::filesystem::create_directories(folder_);
    setenv("DSV4_PROGRESS_S", "1000000", 1);  // errors are compared, however slow the machine is
  }
  ~Cli() override { std::filesystem::remove_all(folder_); }

  static std::string read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  // `before` is placed before the command, e.g. a ulimit.
  CliResult dsv4(const std::string& arguments, const std::string& before = "") const {
    return shell(fmt::format("{} {} {} </dev/null", before, DSV4_BINARY, arguments));
  }
  // Any command line of the shell.
  CliResult shell(const std::string& line) const {
    const std::filesystem::path out = folder_ / "stdout", err = folder_ / "stderr";
    const std::string command = fmt::format("{{ {}; }} >{} 2>{}", line, out.string(), err.string());
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
  }
  // A failing command: exit code not 0, nothing on stdout, exactly one line on stderr, which
  // contains `what`.
  void expect_error(const std::string& arguments, const std::string& what,
                    const std::string& before = "") const {
    const CliResult result = dsv4(arguments, before);
    EXPECT_GT(result.exit_code, 0) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << arguments << "\n"
                                                                         << result.err;
    EXPECT_NE(result.err.find(what), std::string::npos) << arguments << "\n" << result.err;
  }
  std::string path(const std::string& file) const { return (folder_ / file).string(); }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path(file), std::ios::binary) << text;
  }
  // A copy of a golden model that a test may modify.
  std::string copy_model() const {
    const std::filesystem::path model = folder_ / "model";
    std::filesystem::remove_all(model);
    std::filesystem::copy("tests/golden/hf/mixed", model);
    return model.string();
  }
  void patch_config(const std::string& model, const std::string& from,
                    const std::string& to) const {
    std::string text = read(model + "/config.json");
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    std::ofstream(model + "/config.json") << text.replace(at, from.size(), to);
  }

  std::filesystem::path folder_;
};

}  // namespace dsv4::test
