#include "checks/grid_clocks.h"

#include <algorithm>
#include <array>
#include <new>

namespace emulator {

struct GridClocks::Node {};

namespace {

struct Leaf : GridClocks::Node {
  std::array<KnownEpochs, 16> entries{};
};
struct Branch : GridClocks::Node {
  std::array<const GridClocks::Node*, 16> children{};
};

/// The clock that knows everything.
const Leaf everything;

KnownEpochs later(KnownEpochs a, KnownEpochs b) {
  return {std::max(a.any, b.any), std::max(a.fenced, b.fenced)};
}

}  // namespace

GridClocks::GridClocks(std::uint64_t blocks, std::size_t memory_limit) : limit_(memory_limit) {
  while (blocks > std::uint64_t{1} << (bits * levels_)) ++levels_;
}
GridClocks::~GridClocks() = default;

/// nullptr when the memory is used up.
template <class T>
T* GridClocks::make() {
  constexpr std::size_t chunk_bytes = 1 << 16;
  const std::size_t bytes = (sizeof(T) + 15) / 16 * 16;
  std::lock_guard lock(mutex_);
  if (used_ + bytes > limit_) return nullptr;
  if (chunk_left_ < bytes) {
    chunks_.push_back(std::make_unique<std::byte[]>(chunk_bytes));
    chunk_left_ = chunk_bytes;
  }
  std::byte* at = chunks_.back().get() + (chunk_bytes - chunk_left_);
  chunk_left_ -= bytes;
  used_ += bytes;
  return new (at) T;
}

KnownEpochs GridClocks::known(Clock clock, std::uint32_t block) const {
  if (clock == &everything) return {0xffff, 0xffff};
  for (int level = levels_ - 1; level > 0; --level) {
    if (!clock) return {};
    clock = static_cast<const Branch*>(clock)->children[block >> (bits * level) & (width - 1)];
  }
  return clock ? static_cast<const Leaf*>(clock)->entries[block & (width - 1)] : KnownEpochs{};
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
    const KnownEpochs entry = old ? later(old->entries[place], epochs) : epochs;
    if (old && entry == old->entries[place]) return old;
    Leaf* leaf = make<Leaf>();
    if (!leaf) return nullptr;
    if (old) *leaf = *old;
    leaf->entries[place] = entry;
    return leaf;
  }
  const Branch* old = static_cast<const Branch*>(node);
  const Node* old_child = old ? old->children[place] : nullptr;
  const Node* child = with(old_child, level - 1, block, epochs);
  if (!child || (old && child == old_child)) return child ? node : nullptr;
  Branch* branch = make<Branch>();
  if (!branch) return nullptr;
  if (old) *branch = *old;
  branch->children[place] = child;
  return branch;
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
    for (std::uint32_t i = 0; i < width; ++i) sum.entries[i] = later(x.entries[i], y.entries[i]);
    if (sum.entries == x.entries) return a;
    if (sum.entries == y.entries) return b;
    Leaf* leaf = make<Leaf>();
    if (leaf) *leaf = sum;
    return leaf;
  }
  const Branch &x = *static_cast<const Branch*>(a), &y = *static_cast<const Branch*>(b);
  Branch sum;
  for (std::uint32_t i = 0; i < width; ++i) {
    sum.children[i] = join(x.children[i], y.children[i], level - 1);
    if (!sum.children[i] && (x.children[i] || y.children[i])) return nullptr;
  }
  if (sum.children == x.children) return a;
  if (sum.children == y.children) return b;
  Branch* branch = make<Branch>();
  if (branch) *branch = sum;
  return branch;
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
    if (level == 0 ? place != but && static_cast<const Leaf*>(node)->entries[i].any >= epoch
                   : knows_other(static_cast<const Branch*>(node)->children[i], level - 1, but, place, epoch))
      return true;
  }
  return false;
}

}  // namespace emulator
