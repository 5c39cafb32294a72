#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nemocube::tok {

/// Byte positions [begin, end).
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A part of the input on its way through the stages. Records for each byte which bytes of the original input
/// it comes from. Until a stage changes the text, this object is a view of the input.
class AlignedText {
 public:
  /// `range` of `original`, which must outlive this object.
  AlignedText(std::string_view original, Range range)
      : source_(original.substr(range.begin, range.end - range.begin)), base_(range.begin) {}

  std::string_view view() const { return changed_ ? std::string_view(own_) : source_; }

  /// The range of the original input that the bytes `range` of view() come from. For inserted bytes the range
  /// is empty, and lies before the next byte.
  Range original(Range range) const;

  AlignedText slice(Range range) const;

  /// Replaces the text by the concatenation of `parts`.
  struct Part {
    Range kept;                 // bytes of view()
    std::string_view replaced;  // when `is_new`: these bytes stand in for `kept`
    bool is_new = false;
  };
  void rebuild(const std::vector<Part>& parts);

  /// Replaces the text by `characters`, which follow each other as what they replace does. A character comes
  /// from the first of those that it replaces. One that replaces none comes from the character before its
  /// place.
  struct Character {
    char32_t value = 0;
    std::size_t replaces = 1;  // characters of view()
  };
  void rebuild(const std::vector<Character>& characters);

 private:
  AlignedText() = default;

  std::string_view source_;
  std::size_t base_ = 0;
  bool changed_ = false;
  std::string own_;
  std::vector<Range> origin_;  // one for each byte of own_
};

}  // namespace nemocube::tok
