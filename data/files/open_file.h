#pragma once
#include <sys/types.h>

#include <string>

namespace nemocube {

/// open(2). Where the process has as many files open as its limit allows (RLIMIT_NOFILE, ulimit -n), the
/// limit is raised to the hard limit first. -1, and errno, where the file cannot be opened.
int open_file(const char* path, int flags, mode_t mode = 0);

/// The text of errno `code` of open_file(): "No such file or
/// directory"; for too many open files also the limit.
std::string open_message(int code);

}  // namespace nemocube
