#include "data/files/open_file.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace nemocube {

namespace {

bool raise_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace

int open_file(const char* path, int flags, mode_t mode) {
  int file = ::open(path, flags, mode);
  if (file < 0 && errno == EMFILE) {
    file = raise_limit() ? ::open(path, flags, mode) : (errno = EMFILE, -1);
  }
  return file;
}

std::string open_message(int code) {
  const std::string text = std::generic_category().message(code);
  rlimit limit{};
  if (code != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return text;
  return cat(text, ": the process may have ", limit.rlim_cur,
             " files open, and no more by its hard limit; raise that (ulimit -Hn, LimitNOFILE)");
}

}  // namespace nemocube
