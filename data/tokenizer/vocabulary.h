#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nemocube::tok {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

using TokenId = std::uint32_t;

/// Ids above this are refused, because tables are as long as the highest id.
inline constexpr std::int64_t highest_token_id = (1 << 24) - 1;

/// Ranks of merges by the pair of ids. Open addressing, because this lookup dominates encoding.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    TokenId result;
  };

  /// Makes room for `count` pairs.
  explicit MergeTable(std::size_t count = 0);

  /// A pair set twice keeps the later merge. pre: at most `count` different pairs are set
  void set(TokenId left, TokenId right, Merge merge);

  const Merge* find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return &slots_[slot].merge;
      if (slots_[slot].key == empty) return nullptr;
    }
  }

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  static constexpr std::uint64_t empty = ~std::uint64_t{0};

  static std::uint64_t key_of(TokenId left, TokenId right) { return (std::uint64_t{left} << 32) | right; }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace nemocube::tok
