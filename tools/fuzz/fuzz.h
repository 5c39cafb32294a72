#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/error.h"

/// What the fuzzers of this folder share. A fuzzer is a file with the function LLVMFuzzerTestOneInput, which
/// libFuzzer calls with one input after another (https://llvm.org/docs/LibFuzzer.html). Each hands the input
/// to one reader of files that come from strangers. The reader must accept the input or throw Error; what
/// else comes of an input is a finding: another exception, an access that AddressSanitizer or
/// UndefinedBehaviorSanitizer reports, a run of more than a minute, or more than 2 GiB of memory.
namespace nemocube::fuzz {

/// Calls `read`, which may refuse its input. Returns whether it accepted.
template <class Read>
bool allow_refusal(Read&& read) {
  try {
    read();
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// What LLVMFuzzerTestOneInput returns so that libFuzzer makes other inputs only of those that were accepted.
/// Readers that check much refuse nearly all that is made of refused inputs.
inline int keep_if(bool accepted) { return accepted ? 0 : -1; }

/// Ends the fuzzer, which keeps the input, where a promise about what was read does not hold.
inline void want(bool holds) {
  if (!holds) std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A folder in memory, for readers that want files. Its files are written anew for each input.
class Folder {
 public:
  Folder() : path_("/dev/shm/nemocube-fuzz-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  /// By system calls: a stream takes longer than most readers.
  std::string write(const std::string& name, std::string_view bytes) const {
    std::string file = path_ + "/" + name;
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    want(::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(descriptor);
    return file;
  }

 private:
  std::string path_;
};

}  // namespace nemocube::fuzz
