#include "ptx/parser.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "ptx/declarations.h"
#include "ptx/function.h"
#include "ptx/lexer.h"
#include "ptx/source_lines.h"

namespace emulator::ptx {
namespace {

class ModuleParser {
 public:
  explicit ModuleParser(std::string_view text) : lexer_(text) {}

  Module parse() {
    version();
    while (lexer_.peek().kind != TokenKind::end) item();
    lines_.finish(module_);
    return std::move(module_);
  }

 private:
  struct Linkage {
    bool external = false, visible = false, weak = false;
  };

  /// ".version 9.0" begins each module (PTX ISA 11.1).
  void version() {
    if (!lexer_.accept(TokenKind::dotted, ".version")) lexer_.fail(".version expected");
    const Token token = lexer_.expect(TokenKind::number, "a version");
    const std::size_t point = token.text.find('.');
    if (point == std::string_view::npos ||
        token.text.find_first_not_of("0123456789.") != std::string_view::npos) {
      lexer_.fail("a version such as 9.0 expected", token);
    }
    module_.version_major = std::stoi(std::string(token.text.substr(0, std::min<std::size_t>(point, 4))));
    module_.version_minor = std::stoi(std::string(token.text.substr(point + 1, 4)));
  }

  void item() {
    const Token first = lexer_.peek();
    Linkage linkage;
    while (read_linkage(linkage)) {
    }
    const Token token = lexer_.expect(TokenKind::dotted, "a directive");
    const std::string_view word = token.text;
    if (word == ".entry" || word == ".func") return function(linkage, word == ".entry", first.line);
    const Space space = space_of(token);
    if (space == Space::global || space == Space::constant || space == Space::shared)
      return variables(linkage, space);
    if (word == ".target") return target();
    if (word == ".address_size") return address_size();
    if (word == ".file") return lines_.file(lexer_);
    if (word == ".loc") return lines_.location(lexer_);
    if (word == ".section") return lines_.section(lexer_);
    if (word == ".alias") return alias();
    if (word == ".pragma") return pragma();
    lexer_.fail("unknown directive " + std::string(word), token);
  }

  bool read_linkage(Linkage& linkage) {
    const Token& token = lexer_.peek();
    if (token.kind != TokenKind::dotted) return false;
    if (token.text == ".extern") {
      linkage.external = true;
    } else if (token.text == ".visible") {
      linkage.visible = true;
    } else if (token.text == ".weak" || token.text == ".common") {
      linkage.weak = true;
    } else {
      return false;
    }
    lexer_.next();
    return true;
  }

  void target() {
    module_.target = lexer_.name("a target");
    while (lexer_.accept(',')) {
      const std::string_view option = lexer_.name("an option of the target");
      module_.debug |= option == "debug";
    }
  }

  void address_size() {
    const Token token = lexer_.peek();
    if (lexer_.unsigned_number() != 64) lexer_.fail("addresses have 64 bits here", token);
  }

  void variables(const Linkage& linkage, Space space) {
    for (auto& [name, variable] : parse_variables(lexer_, space)) {
      variable.external = linkage.external;
      variable.visible = linkage.visible;
      variable.weak = linkage.weak;
      names_.insert(name);
      module_.variables.push_back(std::move(variable));
    }
  }

  void function(const Linkage& linkage, bool entry, std::uint32_t line) {
    Function& function = module_.functions.emplace_back();
    function.entry = entry;
    function.visible = linkage.visible;
    function.weak = linkage.weak;
    function.place = lines_.place(line);
    names_.insert(parse_function(lexer_, lines_, names_, function));
  }

  void alias() {
    const std::string_view name = lexer_.name("an alias");
    lexer_.expect(',');
    module_.aliases[std::string(name)] = lexer_.name("a function");
    lexer_.expect(';');
  }

  void pragma() {
    do {
      lexer_.expect(TokenKind::string, "a string");
    } while (lexer_.accept(','));
    lexer_.expect(';');
  }

  Lexer lexer_;
  SourceLines lines_;
  std::unordered_set<std::string_view> names_;  ///< of variables and functions
  Module module_;
};

}  // namespace

Module parse(std::string_view text) { return ModuleParser(text).parse(); }

}  // namespace emulator::ptx
