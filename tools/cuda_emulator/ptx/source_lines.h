#pragma once
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ptx/lexer.h"
#include "ptx/syntax.h"

namespace emulator::ptx {

/// The line table of a module: .file, .loc and the strings of .debug_str (PTX ISA 11.5). Each function takes
/// over behind the directive's word.
class SourceLines {
 public:
  void file(Lexer& lexer);
  void location(Lexer& lexer);
  /// Reads .debug_str, skips the other sections.
  void section(Lexer& lexer);
  /// No .loc holds any more: a function has ended.
  void forget() { place_ = {}; }
  /// Where a statement on `line` of the PTX comes from.
  Place place(std::uint32_t line) const;
  /// Hands files and inlinings to the module, once its whole text has been read.
  void finish(Module& module);

 private:
  struct NameAt {
    std::string_view label;  ///< in .debug_str
    std::uint64_t offset;
  };
  using Location = std::array<std::uint32_t, 3>;  ///< file, line, column

  Location read_location(Lexer& lexer);
  std::string text_at(const NameAt& name) const;

  Place place_;
  std::vector<std::string> files_;
  std::vector<Inlining> inlinings_ = std::vector<Inlining>(1);
  std::vector<NameAt> inlined_names_ = std::vector<NameAt>(1);
  std::map<Location, std::uint32_t> inlining_at_;  ///< the inlining of the last .loc of a location
  std::map<std::pair<Location, std::pair<std::string_view, std::uint64_t>>, std::vector<std::uint32_t>>
      known_;
  std::string strings_;
  std::unordered_map<std::string_view, std::size_t> string_labels_;
};

}  // namespace emulator::ptx
