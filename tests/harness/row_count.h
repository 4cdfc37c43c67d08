// Which rows a test program has put to the test, printed at its end: a row that no machine ran is
// not tested, whatever the exit status says.

#pragma once

#include <string>

namespace dsv4::test {

void count_row(const std::string& row);

}  // namespace dsv4::test
