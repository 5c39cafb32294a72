#include "data/tokenizer/vocabulary.h"

namespace nemocube::tok {

MergeTable::MergeTable(std::size_t count) {
  int bits = 4;
  while ((std::size_t{1} << bits) < 2 * count + 1) ++bits;
  slots_.assign(std::size_t{1} << bits, Slot{empty, {0, 0}});
  mask_ = slots_.size() - 1;
  shift_ = 64 - bits;
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = slot_of(key);
  while (slots_[slot].key != key && slots_[slot].key != empty) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

}  // namespace nemocube::tok
