#include "nccl/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>

namespace emulator::nccl {
namespace {

constexpr std::size_t alignment = 4096;
constexpr const char* name_prefix = "cuda_emulator_nccl_";

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

[[noreturn]] void fail(const char* call, const std::string& name) {
  throw std::runtime_error(std::string(call) + " of shared memory " + name + ": " + std::strerror(errno));
}

/// Names that this process holds and not all ranks have opened. They go when the process ends in order. The object stays:
/// other exit handlers use it.
class PendingNames {
 public:
  PendingNames();
  void unlink_all() {
    const std::lock_guard lock(mutex_);
    for (const std::string& name : names_) shm_unlink(name.c_str());
  }
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.insert(name);
  }
  void remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.erase(name);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

PendingNames& pending_names() {
  static PendingNames* const names = new PendingNames;
  return *names;
}

PendingNames::PendingNames() {
  std::atexit([] { pending_names().unlink_all(); });
}

/// Opens or makes the file and holds a shared lock on it, which says that a process lives that uses it.
int open_locked(const std::string& name) {
  for (;;) {
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) fail("shm_open", name);
    struct stat status;
    if (flock(file, LOCK_SH) != 0 || fstat(file, &status) != 0) {
      close(file);
      fail("flock", name);
    }
    if (status.st_nlink > 0) return file;
    close(file);  // removed as dead between the two calls
  }
}

}  // namespace

Segment::Segment(const std::string& name, int ranks)
    : name_(name), hash_(std::hash<std::string>{}(name)), ranks_(ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  piece_bytes_ = std::clamp<std::size_t>((4u << 20) / (2 * n) / alignment * alignment, 32u << 10, 512u << 10);
  ring_bytes_ = std::clamp<std::size_t>((2u << 20) / (n * n) / alignment * alignment, 16u << 10, 256u << 10);
  pending_names().add(name);
  file_ = open_locked(name);
  // posix_fallocate, not ftruncate: a full /dev/shm is an error here instead of a signal later.
  errno = posix_fallocate(file_, 0, static_cast<off_t>(total_bytes()));
  if (errno != 0) {
    close(file_);
    fail("posix_fallocate", name);
  }
  void* const memory = mmap(nullptr, total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) {
    close(file_);
    fail("mmap", name);
  }
  base_ = static_cast<std::byte*>(memory);  // new pages are zero, which is the start value of everything
}

Segment::~Segment() {
  pending_names().remove(name_);
  const bool complete = header().ready != 0;
  munmap(base_, total_bytes());
  // The last one to leave a segment to which not all came removes its name.
  if (!complete && flock(file_, LOCK_EX | LOCK_NB) == 0) shm_unlink(name_.c_str());
  close(file_);
}

void Segment::unlink() {
  shm_unlink(name_.c_str());
  pending_names().remove(name_);
}

std::size_t Segment::rank_offset(int rank) const {
  return aligned(sizeof(Header)) + static_cast<std::size_t>(rank) * aligned(sizeof(RankArea));
}

std::size_t Segment::rings_offset() const {
  return slots_offset() + static_cast<std::size_t>(ranks_) * 2 * piece_bytes_;
}

std::size_t Segment::total_bytes() const {
  const auto n = static_cast<std::size_t>(ranks_);
  return rings_offset() + n * n * (alignment + ring_bytes_);
}

std::byte* Segment::slot(int rank, std::uint64_t piece) const {
  return base_ + slots_offset() + (static_cast<std::size_t>(rank) * 2 + piece % 2) * piece_bytes_;
}

Ring& Segment::ring(int from, int to) const {
  const auto index =
      static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(to);
  return *reinterpret_cast<Ring*>(base_ + rings_offset() + index * (alignment + ring_bytes_));
}

std::byte* Segment::ring_data(int from, int to) const {
  return reinterpret_cast<std::byte*>(&ring(from, to)) + alignment;
}

std::string new_segment_name() {
  static std::atomic<unsigned> counter{0};
  return "/" + std::string(name_prefix) + std::to_string(getpid()) + "_" +
         std::to_string(process_start(getpid())) + "_" + std::to_string(++counter);
}

void remove_dead_segments() {
  DIR* const folder = opendir("/dev/shm");
  if (!folder) return;
  while (const dirent* const entry = readdir(folder)) {
    if (std::strncmp(entry->d_name, name_prefix, std::strlen(name_prefix)) != 0) continue;
    const std::string name = std::string("/") + entry->d_name;
    const int file = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (file < 0) continue;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) shm_unlink(name.c_str());
    close(file);
  }
  closedir(folder);
}

std::uint64_t process_start(int pid) {
  std::FILE* const file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (!file) return 0;
  char text[1024] = {};
  const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[size] = 0;
  // The name in parentheses may hold anything; then come the state and, 19 fields later, the start time.
  const char* const after_name = std::strrchr(text, ')');
  char state = 0;
  unsigned long long start = 0;
  if (!after_name ||
      std::sscanf(after_name + 1,
                  " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state,
                  &start) != 2) {
    return 0;
  }
  return state == 'Z' || state == 'X' ? 0 : start;
}

}  // namespace emulator::nccl
