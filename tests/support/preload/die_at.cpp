// A library to be preloaded into a run of the program: the process is killed just before the NEMOCUBE_DIE_AT-th call
// that changes what the checkpoint directory says. These calls are renames and new links there, removed directories,
// and lines of logs. Files of a checkpoint that has no final name yet do not count, but with NEMOCUBE_DIE_STAGED every
// call that makes, writes, syncs or renames one counts too. With NEMOCUBE_DIE_RANK only that rank of a job is killed.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
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

void before_change() {
  static const char* const wanted = std::getenv("NEMOCUBE_DIE_AT");
  static const bool here = is_wanted_rank();
  static std::atomic<int> calls{0};
  if (wanted && here && ++calls == std::atoi(wanted)) ::kill(::getpid(), SIGKILL);
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

void before_staged(std::string_view path) {
  if (counts_staged() && is_staged(path)) before_change();
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
  return next(&::symlink, "symlink")(target, link);
}

int unlinkat(int directory, const char* name, int flags) noexcept {
  if (flags != 0) before_change();
  return next(&::unlinkat, "unlinkat")(directory, name, flags);
}

ssize_t write(int file, const void* bytes, size_t count) {
  const std::string path = path_of(file);
  if (path.ends_with(".jsonl"))
    before_change();
  else
    before_staged(path);
  return next(&::write, "write")(file, bytes, count);
}

ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) {
  before_staged(path_of(file));
  return next(&::pwrite, "pwrite")(file, bytes, count, at);
}

int fsync(int file) {
  before_staged(path_of(file));
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
    before_staged(path);
  }
  return next(&::open, "open")(path, flags, mode);
}

}  // extern "C"
