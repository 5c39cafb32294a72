#include "ptx/source_lines.h"

#include <algorithm>

#include "ptx/constants.h"

namespace emulator::ptx {
namespace {

constexpr std::uint64_t most_files = 1u << 20;

std::uint32_t number32(Lexer& lexer) { return static_cast<std::uint32_t>(lexer.unsigned_number()); }

}  // namespace

void SourceLines::file(Lexer& lexer) {
  const std::uint64_t index = lexer.unsigned_number();
  if (index > most_files) lexer.fail("a file number that is too large");
  const Token path = lexer.expect(TokenKind::string, "a path");
  while (lexer.accept(',')) lexer.unsigned_number();  // time stamp and size
  if (files_.size() <= index) files_.resize(index + 1);
  files_[index] = path.text.substr(1, path.text.size() - 2);
}

SourceLines::Location SourceLines::read_location(Lexer& lexer) {
  Location location{};
  for (std::uint32_t& number : location) number = number32(lexer);
  return location;
}

void SourceLines::location(Lexer& lexer) {
  const Location here = read_location(lexer);
  NameAt name{};
  Location call{};
  while (lexer.accept(',')) {
    if (lexer.accept(TokenKind::name, "function_name")) {
      const Token label = lexer.next();
      if (label.kind != TokenKind::name && label.kind != TokenKind::dotted)
        lexer.fail("a label expected", label);
      name.label = label.text;
      if (lexer.accept('+')) name.offset = lexer.unsigned_number();
    } else if (lexer.accept(TokenKind::name, "inlined_at")) {
      call = read_location(lexer);
    } else {
      lexer.fail("function_name or inlined_at expected");
    }
  }

  std::uint32_t inlining = 0;
  if (call != Location{}) {
    const auto around = inlining_at_.find(call);
    const std::uint32_t outer = around == inlining_at_.end() ? 0 : around->second;
    std::vector<std::uint32_t>& same = known_[{call, {name.label, name.offset}}];
    const auto found = std::find_if(same.begin(), same.end(),
                                    [&](std::uint32_t i) { return inlinings_[i].inlining == outer; });
    if (found != same.end()) {
      inlining = *found;
    } else {
      inlining = static_cast<std::uint32_t>(inlinings_.size());
      inlinings_.push_back({{}, call[0], call[1], outer});
      inlined_names_.push_back(name);
      same.push_back(inlining);
    }
  }
  inlining_at_[here] = inlining;
  place_ = {0, here[0], here[1], inlining};
}

void SourceLines::section(Lexer& lexer) {
  const bool strings = lexer.expect(TokenKind::dotted, "a section's name").text == ".debug_str";
  if (!lexer.peek().is('{')) lexer.fail("'{' expected");
  if (!strings) return lexer.skip_block();
  lexer.expect('{');
  while (!lexer.accept('}')) {
    if (lexer.accept(TokenKind::dotted, ".b8")) {
      do {
        strings_ += static_cast<char>(integer_constant(lexer));
      } while (lexer.accept(','));
    } else {
      string_labels_[lexer.name("a label or .b8")] = strings_.size();
      lexer.expect(':');
    }
  }
}

Place SourceLines::place(std::uint32_t line) const {
  Place place = place_;
  place.line = line;
  return place;
}

std::string SourceLines::text_at(const NameAt& name) const {
  std::size_t begin = name.offset;
  if (name.label != ".debug_str") {
    const auto label = string_labels_.find(name.label);
    if (label == string_labels_.end()) return {};
    begin += label->second;
  }
  if (begin >= strings_.size()) return {};
  return strings_.substr(begin, std::min(strings_.find('\0', begin), strings_.size()) - begin);
}

void SourceLines::finish(Module& module) {
  for (std::size_t i = 1; i < inlinings_.size(); ++i) inlinings_[i].function = text_at(inlined_names_[i]);
  module.files = std::move(files_);
  module.inlinings = std::move(inlinings_);
}

}  // namespace emulator::ptx
