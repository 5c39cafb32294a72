// ptx_dump [--text] FILE...: what the PTX of a text or of a program (ELF) holds: functions, statements,
// opcodes by frequency, names that no declaration covers. --text: writes the PTX itself.
#include <elf.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/fatbin.h"
#include "ptx/parser.h"

namespace {

using namespace emulator::ptx;

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + std::string(path));
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The fat binaries of a program stand one behind the other in two sections: .nv_fatbin, and __nv_relfatbin
/// of -rdc.
std::vector<std::string> texts_of_program(const std::string& file) {
  std::vector<std::string> texts;
  const auto at = [&]<typename T>(std::uint64_t offset, T value) {
    if (offset > file.size() || file.size() - offset < sizeof value)
      throw std::runtime_error("a damaged ELF file");
    std::memcpy(&value, file.data() + offset, sizeof value);
    return value;
  };
  const auto header = at(0, Elf64_Ehdr{});
  const auto section = [&](std::uint64_t i) {
    return at(header.e_shoff + i * header.e_shentsize, Elf64_Shdr{});
  };
  const std::uint64_t names = section(header.e_shstrndx).sh_offset;
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr here = section(i);
    if (names + here.sh_name >= file.size()) throw std::runtime_error("a damaged ELF file");
    const std::string_view name = file.c_str() + names + here.sh_name;
    if (name != ".nv_fatbin" && name != "__nv_relfatbin") continue;
    std::uint64_t offset = here.sh_offset;
    while (offset + 16 <= here.sh_offset + here.sh_size) {
      const std::uint64_t fatbin = offset;
      offset = (offset + 16 + at(offset + 8, std::uint64_t{}) + 7) / 8 * 8;
      if (offset > file.size()) throw std::runtime_error("a damaged fat binary");
      const struct {
        std::uint32_t magic = 0x466243b1, version = 1;
        const char* fatbin;
        const void* linked = nullptr;
      } wrapper{.fatbin = file.data() + fatbin};
      for (const std::vector<PtxText>& unit : ptx_of(&wrapper)) {
        if (const PtxText* text = choose(unit)) texts.push_back(text->text);
      }
    }
  }
  return texts;
}

/// Symbols, special registers and labels that statements use and nothing declares.
std::set<std::string> undeclared(const Module& module) {
  std::set<std::string> names, found;
  for (const Variable& variable : module.variables) names.insert(variable.name);
  for (const Function& function : module.functions) names.insert(function.name);
  for (const Function& function : module.functions) {
    std::set<std::string> local;
    for (const Variable& variable : function.variables) local.insert(variable.name);
    for (const auto* list : {&function.parameters, &function.results}) {
      for (const Parameter& parameter : *list) local.insert(parameter.name);
    }
    for (const auto& [name, parameters] : function.prototypes) local.insert(name);
    for (const auto& [name, targets] : function.branch_targets) local.insert(name);
    for (const auto& [name, targets] : function.call_targets) local.insert(name);
    const auto look = [&](const Scalar& scalar) {
      if (const auto* special = std::get_if<SpecialUse>(&scalar)) found.insert(special->name);
      const auto* symbol = std::get_if<SymbolUse>(&scalar);
      if (symbol && !names.contains(symbol->name) && !local.contains(symbol->name))
        found.insert(symbol->name);
    };
    for (const Statement& statement : function.statements) {
      for (const Operand& operand : statement.operands) {
        if (const auto* scalar = std::get_if<Scalar>(&operand)) look(*scalar);
        if (const auto* address = std::get_if<Address>(&operand)) look(address->base);
        if (const auto* vector = std::get_if<Vector>(&operand)) {
          for (const Scalar& element : vector->elements) look(element);
        }
        if (const auto* list = std::get_if<List>(&operand)) {
          for (const Scalar& element : list->elements) look(element);
        }
      }
    }
  }
  return found;
}

void show(const std::string& text) {
  const auto begin = std::chrono::steady_clock::now();
  const Module module = parse(text);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("PTX %d.%d for %s%s: %td lines parsed in %.3f s, %zu variables, %zu functions\n",
              module.version_major, module.version_minor, module.target.c_str(),
              module.debug ? ", debug" : "", std::count(text.begin(), text.end(), '\n'), seconds.count(),
              module.variables.size(), module.functions.size());
  std::map<std::string, std::size_t> opcodes;
  for (const Function& function : module.functions) {
    std::printf("  %-7s %8zu statements %7zu registers  %s\n",
                function.external ? "extern" : (function.entry ? "entry" : "func"),
                function.statements.size(), function.registers.size(), function.name.c_str());
    for (const Statement& statement : function.statements) {
      std::string opcode = statement.opcode;
      for (const std::string& modifier : statement.modifiers) opcode += "." + modifier;
      ++opcodes[opcode];
    }
  }
  std::vector<std::pair<std::size_t, std::string>> sorted;
  for (const auto& [opcode, count] : opcodes) sorted.emplace_back(count, opcode);
  std::sort(sorted.rbegin(), sorted.rend());
  for (const auto& [count, opcode] : sorted) std::printf("  %8zu %s\n", count, opcode.c_str());
  std::printf("  not declared:");
  for (const std::string& name : undeclared(module)) std::printf(" %s", name.c_str());
  std::printf("\n");
}

}  // namespace

int main(int count, char** arguments) {
  try {
    bool plain = false;
    for (const std::string_view argument : std::vector<std::string_view>(arguments + 1, arguments + count)) {
      if (argument == "--text") {
        plain = true;
        continue;
      }
      const std::string file = read(argument.data());
      const bool program = file.starts_with(ELFMAG);
      for (const std::string& text : program ? texts_of_program(file) : std::vector{file}) {
        plain ? static_cast<void>(std::fputs(text.c_str(), stdout)) : show(text);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
