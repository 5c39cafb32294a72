#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "checks/grid_clocks.h"

namespace emulator {

/// For each word of global memory (numbered by address / 4) a clock: what strong writes of one launch have handed over there.
/// Thread-safe; no lock is held while clocks are joined.
class WordClocks {
 public:
  explicit WordClocks(GridClocks& clocks);

  /// The word's clock takes `clock` up.
  void release(std::uint64_t word, GridClocks::Clock clock);
  /// Both ways: what an atomic does. Afterwards both know the same. `included`: what `clock` took up from another word just before,
  /// which needs no second look; becomes what it has taken up now.
  void exchange(std::uint64_t word, GridClocks::Clock& clock, GridClocks::Clock& included);
  GridClocks::Clock acquire(std::uint64_t word);

 private:
  using Place = std::atomic<GridClocks::Clock>;
  static constexpr std::uint64_t page_words = 256;
  using Page = std::array<Place, page_words>;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::uint64_t, std::unique_ptr<Page>> pages;
  };
  /// nullptr: nothing was handed over near the word, and `make` is not set.
  Place* find(std::uint64_t word, bool make);

  GridClocks& clocks_;
  const std::uint64_t identity_;  ///< differs among all objects of the process
  std::array<Shard, 32> shards_;
};

}  // namespace emulator
