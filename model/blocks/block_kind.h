#pragma once
#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace nemocube {

class BlockType;

/// The kind of a block: a handle of its BlockType, which two kinds never share. Each block has one mixer;
/// BlockConfig::residual says which norms the block has.
class BlockKind {
 public:
  constexpr BlockKind(const BlockType& type) : type_(&type) {}  // NOLINT: a type names its kind
  const BlockType* operator->() const { return type_; }
  bool operator==(const BlockKind&) const = default;

 private:
  const BlockType* type_;
};

char letter_of(BlockKind kind);            ///< 'M', '*', '-', 'E'
std::string_view name_of(BlockKind kind);  ///< "mamba", "attention", "mlp", "moe"
std::ostream& operator<<(std::ostream& out, BlockKind kind);

}  // namespace nemocube
