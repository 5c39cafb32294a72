#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace emulator {

/// What is known of a block: all its accesses of epochs up to `any` happened before; those up to `fenced` were handed over with a fence.
struct KnownEpochs {
  std::uint16_t any = 0, fenced = 0;  ///< epochs count from 1
  bool operator==(const KnownEpochs&) const = default;
};

/// Vector clocks over the blocks of one launch: immutable trees of 16 branches. Trees that are equal are one object, whichever way they
/// were made (hash consing), so that clocks that have heard the same things share nearly all of their memory. Adding an entry
/// makes one path anew; joining two clocks visits only the parts in which they differ. Memory is given back with the object. When
/// `memory_limit` is used up, new clocks know everything: races may be missed then, which is reported as an error. Thread-safe.
class GridClocks {
 public:
  struct Node;
  using Clock = const Node*;  ///< nullptr: knows nothing

  /// Blocks are numbered from 0 to blocks - 1.
  explicit GridClocks(std::uint64_t blocks, std::size_t memory_limit = std::size_t{1} << 30);
  ~GridClocks();

  KnownEpochs known(Clock clock, std::uint32_t block) const;
  /// The clock with one entry raised to at least `epochs`.
  Clock with(Clock clock, std::uint32_t block, KnownEpochs epochs);
  Clock join(Clock a, Clock b);
  /// Whether the clock knows an epoch >= `epoch` of some block other than `but`.
  bool knows_other(Clock clock, std::uint32_t but, std::uint16_t epoch) const;

 private:
  static constexpr int bits = 4;
  static constexpr std::uint32_t width = 1u << bits;
  struct Shard;
  /// The node of these contents, made when there is none yet; nullptr when the memory is used up.
  template <class T>
  const T* unique(const T& contents);
  const Node* with(const Node* node, int level, std::uint32_t block, KnownEpochs epochs);
  const Node* join(const Node* a, const Node* b, int level);
  bool knows_other(const Node* node, int level, std::uint32_t but, std::uint32_t first,
                   std::uint16_t epoch) const;

  int levels_ = 1;  ///< of the trees; level 0 holds entries
  std::size_t limit_;
  std::atomic<std::size_t> used_{0};
  std::atomic<bool> exhausted_{false};
  std::vector<std::unique_ptr<Shard>> shards_;  ///< of the nodes, by hash
};

}  // namespace emulator
