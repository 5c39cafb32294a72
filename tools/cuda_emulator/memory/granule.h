#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

/// What the checks keep of each 64 KiB of device or managed memory.
namespace emulator {

/// Last accesses to a word of 4 bytes, packed (checks/word_history.h). Zero: none.
struct WordCell {
  std::atomic<std::uint64_t> write{0}, read{0};
};

/// Histories of single bytes, for words whose bytes different blocks use.
struct SplitWords {
  struct Bytes {
    std::array<std::uint64_t, 4> write{}, read{};
  };
  std::mutex mutex;
  std::unordered_map<std::uint32_t, Bytes> words;  ///< by index of the word in the granule
};

/// Granules lie in anonymous mappings. A mapping of zeros is the state "never touched", so no constructor runs, and pages that no check
/// has used cost nothing.
struct alignas(4096) Granule {
  static constexpr std::uint64_t bytes = 65536;
  std::atomic<SplitWords*> split;  ///< made when the first word of the granule is split
  std::atomic<std::uint32_t>
      whole_write;  ///< OperationId of the last copy or fill that wrote all bytes at once
  std::atomic<std::uint32_t> whole_read;                           ///< the same for reading
  std::atomic<bool> cells_used;                                    ///< some cell is not zero
  std::array<std::atomic<std::uint64_t>, bytes / 64> initialised;  ///< a bit for each byte: it was written
  std::array<WordCell, bytes / 4> cells;

  SplitWords& split_words();
};

}  // namespace emulator
