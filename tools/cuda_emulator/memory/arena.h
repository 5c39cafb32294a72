#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "memory/granule.h"

namespace emulator {

/// The memory of one virtual device, or all managed memory: which ranges are in use, their contents, their granules.
class Arena {
 public:
  enum class Kind : std::uint8_t { device, managed };
  static constexpr std::uint64_t alignment = 512, gap = 512;

  /// Reserves addresses for `capacity` bytes. Throws std::runtime_error when the system has no room for them.
  Arena(Kind kind, std::uint64_t capacity);
  Arena(const Arena&) = delete;  // arenas live as long as the process

  std::uint64_t begin() const { return begin_; }
  bool holds(std::uint64_t address) const { return address - begin_ < size_; }
  Kind kind() const { return kind_; }
  /// What to add to an address for the host address of its contents.
  std::uint64_t distance() const { return distance_; }
  std::uint64_t capacity() const { return capacity_; }

  struct Range {
    std::uint64_t begin, bytes;
  };
  // The caller holds a lock for these four.
  /// A range of at least `bytes` bytes and the gap behind; nothing when the arena is full. Addresses never used before come first,
  /// then those that were given back longest ago. `align`: a power of two, at least `alignment`.
  std::optional<Range> take(std::uint64_t bytes, std::uint64_t align = alignment);
  /// The range that begins at `begin` and was taken for as many bytes before; nothing when it has been taken again since.
  std::optional<Range> take_again(std::uint64_t begin, std::uint64_t bytes);
  void give_back(Range range);
  /// Bytes in use, each range rounded up to the alignment.
  std::uint64_t used() const { return used_; }

  /// Fills the contents of all granules of the range that nobody has touched; those that lie in the range as a whole are
  /// left as they are if the range is about to be overwritten.
  void touch(std::uint64_t address, std::uint64_t bytes, bool overwritten);
  /// The touched range around an address whose granule was touched, within [low, high).
  Range touched_around(std::uint64_t address, std::uint64_t low, std::uint64_t high) const;
  /// Contents become the pattern, marks and histories are forgotten, memory goes back to the system.
  void reset(std::uint64_t address, std::uint64_t bytes);

  // Memory that processes have in common. Nothing may use the range during these calls. They throw std::runtime_error.
  /// Moves the pages of the range into a file that other processes can map. The address stands in the file at its distance from
  /// begin(). Returns the descriptor of the file, which is open as long as the process lives.
  int share(std::uint64_t address, std::uint64_t bytes);
  /// Puts pages of another process's file in the place of this range's, which begins at a multiple of Granule::bytes.
  void attach(std::uint64_t address, std::uint64_t bytes, int file, std::uint64_t offset);
  /// Undoes attach(). The contents are lost.
  void detach(std::uint64_t address, std::uint64_t bytes);

  /// Of a touched or untouched address; nullptr when no granule nearby was made and `make` is false.
  Granule* granule(std::uint64_t address, bool make);

 private:
  static constexpr std::uint64_t granules_in_chunk = 256;
  bool touched(std::uint64_t index) const {
    return touched_[index / 64].load(std::memory_order_acquire) >> (index % 64) & 1;
  }
  void touch_granule(std::uint64_t index, bool fill);
  Granule* make_chunk(std::uint64_t chunk);

  Kind kind_;
  std::uint64_t capacity_, size_ = 0, begin_ = 0, distance_ = 0;
  std::atomic<std::uint64_t>* touched_ = nullptr;  ///< a bit for each granule
  std::atomic<Granule*>* chunks_ = nullptr;
  std::mutex chunk_mutex_;
  std::array<std::mutex, 64> fill_mutexes_;
  std::mutex share_mutex_;
  std::atomic<int> shared_file_{-1};  ///< made with the first shared range
  std::vector<bool> shared_;          ///< a bit for each page: it lies in the file

  std::uint64_t never_used_ = 0;  ///< addresses from here on were never given out
  std::uint64_t used_ = 0;
  std::deque<Range> quarantine_;                 ///< given back, oldest first
  std::map<std::uint64_t, std::uint64_t> free_;  ///< left the quarantine: begin, bytes
};

}  // namespace emulator
