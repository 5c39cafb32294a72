#include "checks/grid_clocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "machine/report.h"

namespace emulator {

struct GridClocks::Node {};

namespace {

struct Leaf : GridClocks::Node {
  std::array<std::uint16_t, 32> epochs{};  ///< `any` and `fenced` of each block
  std::uint64_t hash = 0;

  KnownEpochs entry(std::uint32_t block) const { return {epochs[2 * block], epochs[2 * block + 1]}; }
  void set(std::uint32_t block, KnownEpochs known) {
    epochs[2 * block] = known.any;
    epochs[2 * block + 1] = known.fenced;
  }
};
struct Branch : GridClocks::Node {
  std::array<const GridClocks::Node*, 16> children{};
  std::uint64_t hash = 0;
};

bool same(const Leaf& a, const Leaf& b) { return a.epochs == b.epochs; }
bool same(const Branch& a, const Branch& b) { return a.children == b.children; }

std::uint64_t hash_of(const void* bytes, std::size_t count) {
  std::uint64_t hash = count;
  for (std::size_t at = 0; at < count; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, static_cast<const std::byte*>(bytes) + at, 8);
    hash = (hash ^ word) * 0x9e37'79b9'7f4a'7c15;
    hash ^= hash >> 29;
  }
  return hash;
}
std::uint64_t hash_of(const Leaf& leaf) { return hash_of(&leaf.epochs, sizeof leaf.epochs); }
std::uint64_t hash_of(const Branch& branch) { return hash_of(&branch.children, sizeof branch.children); }

/// Nodes by hash: open addressing, at most half full.
template <class T>
class Table {
 public:
  /// The node of the contents, or the place where it belongs (*place is nullptr).
  const T** find(const T& contents) {
    if (2 * (count_ + 1) > nodes_.size()) grow();
    std::size_t at = contents.hash / shard_count % nodes_.size();
    while (nodes_[at] && !(nodes_[at]->hash == contents.hash && same(*nodes_[at], contents)))
      at = (at + 1) % nodes_.size();
    return &nodes_[at];
  }
  void added() { ++count_; }
  static constexpr std::size_t shard_count = 16;

 private:
  void grow() {
    std::vector<const T*> old(std::max<std::size_t>(64, 2 * nodes_.size()));
    old.swap(nodes_);
    for (const T* node : old) {
      if (!node) continue;
      std::size_t at = node->hash / shard_count % nodes_.size();
      while (nodes_[at]) at = (at + 1) % nodes_.size();
      nodes_[at] = node;
    }
  }
  std::vector<const T*> nodes_;
  std::size_t count_ = 0;
};

/// The clock that knows everything.
const Leaf everything;

KnownEpochs later(KnownEpochs a, KnownEpochs b) {
  return {std::max(a.any, b.any), std::max(a.fenced, b.fenced)};
}

}  // namespace

struct GridClocks::Shard {
  std::mutex mutex;
  Table<Leaf> leaves;
  Table<Branch> branches;
  std::vector<std::unique_ptr<std::byte[]>> chunks;
  std::size_t chunk_left = 0;

  auto& table(const Leaf&) { return leaves; }
  auto& table(const Branch&) { return branches; }
};

GridClocks::GridClocks(std::uint64_t blocks, std::size_t memory_limit) : limit_(memory_limit) {
  while (blocks > std::uint64_t{1} << (bits * levels_)) ++levels_;
  for (std::size_t k = 0; k < Table<Leaf>::shard_count; ++k) shards_.push_back(std::make_unique<Shard>());
}
GridClocks::~GridClocks() = default;

template <class T>
const T* GridClocks::unique(const T& contents) {
  T node = contents;
  node.hash = hash_of(contents);
  Shard& shard = *shards_[node.hash % shards_.size()];
  std::lock_guard lock(shard.mutex);
  const T** const place = shard.table(node).find(node);
  if (*place) return *place;
  constexpr std::size_t chunk_bytes = 1 << 14, bytes = sizeof(T);
  if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes > limit_) {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    if (!exhausted_.exchange(true, std::memory_order_relaxed))
      report(Severity::error, "check-limit",
             "a launch's handovers between blocks need more than " + std::to_string(limit_ >> 20) +
                 " MiB of clocks: races between its blocks may be missed from here on; let it do less, or "
                 "use --no-check");
    return nullptr;
  }
  if (shard.chunk_left < bytes) {
    shard.chunks.push_back(std::make_unique<std::byte[]>(chunk_bytes));
    shard.chunk_left = chunk_bytes;
  }
  std::byte* const at = shard.chunks.back().get() + (chunk_bytes - shard.chunk_left);
  shard.chunk_left -= bytes;
  shard.table(node).added();
  return *place = new (at) T(node);
}

KnownEpochs GridClocks::known(Clock clock, std::uint32_t block) const {
  if (clock == &everything) return {0xffff, 0xffff};
  for (int level = levels_ - 1; level > 0; --level) {
    if (!clock) return {};
    clock = static_cast<const Branch*>(clock)->children[block >> (bits * level) & (width - 1)];
  }
  return clock ? static_cast<const Leaf*>(clock)->entry(block & (width - 1)) : KnownEpochs{};
}

GridClocks::Clock GridClocks::with(Clock clock, std::uint32_t block, KnownEpochs epochs) {
  if (clock == &everything) return clock;
  const Node* made = with(clock, levels_ - 1, block, epochs);
  return made ? made : &everything;
}

const GridClocks::Node* GridClocks::with(const Node* node, int level, std::uint32_t block,
                                         KnownEpochs epochs) {
  const std::uint32_t place = block >> (bits * level) & (width - 1);
  if (level == 0) {
    const Leaf* old = static_cast<const Leaf*>(node);
    const KnownEpochs entry = old ? later(old->entry(place), epochs) : epochs;
    if (old && entry == old->entry(place)) return old;
    Leaf leaf;
    if (old) leaf = *old;
    leaf.set(place, entry);
    return unique(leaf);
  }
  const Branch* old = static_cast<const Branch*>(node);
  const Node* old_child = old ? old->children[place] : nullptr;
  const Node* child = with(old_child, level - 1, block, epochs);
  if (!child || (old && child == old_child)) return child ? node : nullptr;
  Branch branch;
  if (old) branch = *old;
  branch.children[place] = child;
  return unique(branch);
}

GridClocks::Clock GridClocks::join(Clock a, Clock b) {
  if (!a || a == b) return b;
  if (!b) return a;
  if (a == &everything || b == &everything) return &everything;
  const Node* made = join(a, b, levels_ - 1);
  return made ? made : &everything;
}

const GridClocks::Node* GridClocks::join(const Node* a, const Node* b, int level) {
  if (!a || a == b) return b;
  if (!b) return a;
  if (level == 0) {
    const Leaf &x = *static_cast<const Leaf*>(a), &y = *static_cast<const Leaf*>(b);
    Leaf sum;
    unsigned more_than_a = 0, more_than_b = 0;
    for (std::uint32_t i = 0; i < 2 * width; ++i) {
      sum.epochs[i] = std::max(x.epochs[i], y.epochs[i]);
      more_than_a |= sum.epochs[i] ^ x.epochs[i];
      more_than_b |= sum.epochs[i] ^ y.epochs[i];
    }
    return !more_than_a ? a : !more_than_b ? b : unique(sum);
  }
  const Branch &x = *static_cast<const Branch*>(a), &y = *static_cast<const Branch*>(b);
  Branch sum;
  bool is_a = true, is_b = true;
  for (std::uint32_t i = 0; i < width; ++i) {
    const Node *const p = x.children[i], *const q = y.children[i];
    sum.children[i] = p;
    if (p == q) continue;
    const Node* const child = join(p, q, level - 1);
    if (!child) return nullptr;
    sum.children[i] = child;
    is_a = is_a && child == p;
    is_b = is_b && child == q;
  }
  return is_a ? a : is_b ? b : unique(sum);
}

bool GridClocks::knows_other(Clock clock, std::uint32_t but, std::uint16_t epoch) const {
  if (clock == &everything) return true;
  return knows_other(clock, levels_ - 1, but, 0, epoch);
}

bool GridClocks::knows_other(const Node* node, int level, std::uint32_t but, std::uint32_t first,
                             std::uint16_t epoch) const {
  if (!node) return false;
  for (std::uint32_t i = 0; i < width; ++i) {
    const std::uint32_t place = first + (i << (bits * level));
    if (level == 0 ? place != but && static_cast<const Leaf*>(node)->entry(i).any >= epoch
                   : knows_other(static_cast<const Branch*>(node)->children[i], level - 1, but, place, epoch))
      return true;
  }
  return false;
}

}  // namespace emulator
