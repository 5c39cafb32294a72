// A library to be preloaded into a run of the program: the process is killed just before the
// NEMOCUBE_DIE_AT-th call that changes what the checkpoint directory says. These calls are renames and new
// links there, removed directories, and lines of logs. Files of a checkpoint that has no final name yet do
// not count, but with NEMOCUBE_DIE_STAGED every call that makes, writes, syncs or renames one counts too.
// With NEMOCUBE_DIE_RANK only that rank of a job is killed.
//
// NEMOCUBE_NO_LINKS: the file system has no symbolic links.
// NEMOCUBE_FULL_IN: for such files of which the path fits this pattern of fnmatch() the disk is full.

#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

bool is_wanted_rank() {
  const char *const wanted = std::getenv("NEMOCUBE_DIE_RANK"), *const rank =
                                                                   std::getenv("OMPI_COMM_WORLD_RANK");
  return !wanted || (rank && std::string_view(wanted) == rank);
}

// Whether the disk is full.
bool before_change() {
  static const char *const die = std::getenv("NEMOCUBE_DIE_AT"), *const full =
                                                                     std::getenv("NEMOCUBE_FULL_AT");
  static const bool here = is_wanted_rank();
  static std::atomic<int> calls{0};
  if (!here || (!die && !full)) return false;
  const int call = ++calls;
  if (die && call == std::atoi(die)) ::kill(::getpid(), SIGKILL);
  return full && call >= std::atoi(full);
}

bool counts_staged() {
  static const bool counts = std::getenv("NEMOCUBE_DIE_STAGED") != nullptr;
  return counts;
}

bool is_staged(std::string_view path) { return path.find(".tmp/") != path.npos; }

std::string path_of(int file) {
  char name[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t size = ::readlink(link.c_str(), name, sizeof name);
  return {name, static_cast<std::size_t>(size > 0 ? size : 0)};
}

// Whether the disk has no room for this file.
bool is_full(const std::string& path) {
  static const char* const full = std::getenv("NEMOCUBE_FULL_IN");
  if (!is_staged(path)) return false;
  if (counts_staged()) before_change();
  if (!full || ::fnmatch(full, path.c_str(), 0) != 0) return false;
  errno = ENOSPC;
  return true;
}

template <class Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int rename(const char* from, const char* to) noexcept {
  if (!is_staged(to) || counts_staged()) before_change();
  return next(&::rename, "rename")(from, to);
}

int symlink(const char* target, const char* link) noexcept {
  before_change();
  if (std::getenv("NEMOCUBE_NO_LINKS") != nullptr) {
    errno = EPERM;
    return -1;
  }
  return next(&::symlink, "symlink")(target, link);
}

int unlinkat(int directory, const char* name, int flags) noexcept {
  if (flags != 0) before_change();
  return next(&::unlinkat, "unlinkat")(directory, name, flags);
}

ssize_t write(int file, const void* bytes, size_t count) {
  const std::string path = path_of(file);
  if (path.ends_with(".jsonl")) before_change();
  if (is_full(path)) return -1;
  return next(&::write, "write")(file, bytes, count);
}

ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) {
  if (is_full(path_of(file))) return -1;
  return next(&::pwrite, "pwrite")(file, bytes, count, at);
}

int fsync(int file) {
  if (is_full(path_of(file))) return -1;
  return next(&::fsync, "fsync")(file);
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (counts_staged() && std::string_view(path).find(".tmp") != std::string_view::npos) before_change();
  return next(&::mkdir, "mkdir")(path, mode);
}

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    std::va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (is_full(path)) return -1;
  }
  return next(&::open, "open")(path, flags, mode);
}

}  // extern "C"
