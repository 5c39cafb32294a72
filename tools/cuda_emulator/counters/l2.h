#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

namespace emulator {

/// Bytes of a device's L2 cache: CUDA_EMULATOR_L2, default 50 MiB.
std::uint64_t l2_bytes();

/// The L2 cache of an H100 in front of its DRAM, as one launch finds it: empty. Lines of 128 bytes with four sectors of 32 bytes,
/// 16 lines a set, least recently used out first. A sector is read from DRAM when a load wants it, and when bytes of it were
/// written and not all; dirty sectors are written when their line leaves the cache or the launch ends.
class L2 {
 public:
  enum class Use : std::uint8_t { load, store, atomic };
  explicit L2(std::uint64_t bytes);
  /// Bytes [first, first + bytes) of one sector.
  void access(std::uint64_t address, std::uint32_t bytes, Use use);
  /// Writes what is dirty and empties the cache.
  void flush();
  std::mutex& mutex() { return mutex_; }
  std::uint64_t dram_read_bytes() const { return read_sectors_ * sector_bytes; }
  std::uint64_t dram_write_bytes() const { return written_sectors_ * sector_bytes; }
  static constexpr std::uint32_t sector_bytes = 32;

 private:
  static constexpr std::uint32_t ways = 16, line_bytes = 128;
  struct Line {
    std::uint64_t tag = 0;  ///< line number + 1; 0: empty
    std::uint64_t used = 0;
    std::array<std::uint32_t, 4>
        written{};           ///< bytes of each sector that stores wrote and DRAM does not have
    std::uint8_t valid = 0;  ///< sectors that hold DRAM's bytes
  };
  void evict(Line& line);
  std::uint64_t sets_;
  std::vector<Line> lines_;
  std::uint64_t time_ = 0, read_sectors_ = 0, written_sectors_ = 0;
  std::mutex mutex_;
};

}  // namespace emulator
