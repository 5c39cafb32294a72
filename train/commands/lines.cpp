#include "train/commands/lines.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <system_error>

#include "core/error.h"

namespace nemocube {

void for_each_line(const std::filesystem::path& path, const std::function<void(const std::string&)>& fn) {
  const bool from_stdin = path == "-";
  std::ifstream file;
  if (!from_stdin) {
    file.open(path, std::ios::binary);
    require(file.is_open(), path.string(), ": cannot be opened: ", std::generic_category().message(errno));
    require(!std::filesystem::is_directory(path), path.string(), ": is a directory; want a text file");
  }
  std::istream& in = from_stdin ? std::cin : file;
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    try {
      fn(line);
    } catch (const Error& e) {
      fail(path.string(), ": line ", number, ": ", e.what());
    }
  }
  // C++ reads standard input through C stdio, and only stdio reports read failures.
  const bool failed = from_stdin ? std::ferror(stdin) != 0 : in.bad();
  require(!failed, path.string(), ": cannot be read");
}

}  // namespace nemocube
