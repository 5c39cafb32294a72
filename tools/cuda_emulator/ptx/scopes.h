#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ptx/syntax.h"

namespace emulator::ptx {

/// The names that the nested braces of a function's body declare. The innermost declaration of a name counts.
/// All names given are kept as views of the module's text.
class Scopes {
 public:
  enum class Kind { reg, label, symbol };
  struct Entry {
    Kind kind;
    std::uint32_t index;  ///< of the register or label
    std::string name;     ///< unique in the function
  };
  /// A label was used before its declaration may have been seen: in a statement's operand, or in a
  /// .branchtargets list.
  struct LabelWanted {
    std::string_view name;
    std::uint32_t line;
    std::size_t statement, operand;
    std::string* listed = nullptr;
  };

  /// `taken`: names of the module, which those of inner scopes shall differ from.
  explicit Scopes(const std::unordered_set<std::string_view>& taken) : taken_(taken) { open(); }

  void open() { scopes_.emplace_back(); }
  /// Closes the innermost scope; `found(wanted, index of the label)` is called for each use of its labels,
  /// other uses pass to the scope around.
  template <typename Found>
  void close(Found found);
  std::size_t depth() const { return scopes_.size(); }
  /// The uses of labels that no scope declared, once all are closed.
  const std::vector<LabelWanted>& unresolved() const { return unresolved_; }

  /// Each returns false when the innermost scope has the name already.
  bool declare_register(std::string_view name, std::uint32_t index);
  /// Registers PREFIX0 ... PREFIX<count-1>, whose indices begin at `first`.
  bool declare_family(std::string_view prefix, std::uint32_t first, std::uint32_t count);
  bool declare_label(std::string_view name, std::uint32_t index);
  bool declare_symbol(std::string_view name);

  const Entry* find(std::string_view name) const;
  std::optional<std::uint32_t> find_register(std::string_view name) const;
  /// The name that makes `name` of the innermost scope unique in the function: "x", "x#2".
  const std::string& unique(std::string_view name) const { return scopes_.back().names.at(name).name; }
  void want_label(const LabelWanted& wanted) { scopes_.back().wanted.push_back(wanted); }

 private:
  struct Family {
    std::uint32_t first, count;
  };
  struct Scope {
    std::unordered_map<std::string_view, Entry> names;
    std::unordered_map<std::string_view, Family> families;
    std::vector<LabelWanted> wanted;
  };

  bool declare(std::string_view name, Entry entry);
  std::string make_unique(std::string_view name);
  static std::optional<std::uint32_t> member(const Scope& scope, std::string_view name);

  const std::unordered_set<std::string_view>& taken_;
  std::unordered_map<std::string_view, std::uint32_t> times_declared_;
  std::vector<Scope> scopes_;
  std::vector<LabelWanted> unresolved_;
};

template <typename Found>
void Scopes::close(Found found) {
  const Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  std::vector<LabelWanted>& around = scopes_.empty() ? unresolved_ : scopes_.back().wanted;
  for (const LabelWanted& wanted : scope.wanted) {
    const auto entry = scope.names.find(wanted.name);
    if (entry != scope.names.end() && entry->second.kind == Kind::label) {
      found(wanted, entry->second.index);
    } else {
      around.push_back(wanted);
    }
  }
}

}  // namespace emulator::ptx
