#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/recipe/types.h"

/// State of reading a recipe: its tree, the problems found so far, the keys without effect.
namespace nemocube::recipe {

class Reading {
 public:
  /// Holds references to both.
  Reading(const std::string& file, const Value& root) : file_(file), root_(root) {}

  /// The value at a key path from the root; null when there is none.
  const Value* find(std::string_view path) const;
  bool given(std::string_view path) const;  ///< there, and not null
  /// The beginning of a message about a key: file, line and path, or --set and path.
  std::string where(const Value* value, const std::string& path) const;
  std::string where(const std::string& path) const { return where(find(path), path); }

  /// Runs `work`; an Error becomes a problem of that key, and the result is false.
  bool attempt(const Value* value, const std::string& path, const std::function<void()>& work);
  bool attempt(const std::string& path, const std::function<void()>& work) {
    return attempt(find(path), path, work);
  }
  void problem(const Value* value, const std::string& path, const std::string& message);
  /// A rule over several keys. If `ok` is false, the first key gets a problem, unless one of the keys or a
  /// section around it already has a problem.
  template <class... Parts>
  void rule(bool ok, const std::vector<std::string>& paths, Parts&&... why) {
    if (ok || any_faulty(paths)) return;
    problem(find(paths[0]), paths[0], cat(where(paths[0]), ": ", why...));
  }
  bool any_faulty(const std::vector<std::string>& paths) const;
  /// The key whose message was the first to list these keys: a long list is written once.
  const std::string& first_to_list(const std::string& keys, const std::string& path) {
    return lists_.emplace(keys, path).first->second;
  }
  void mark_faulty(const std::string& path) { faulty_.insert(path); }
  /// Whether to stop reading: there are more problems than anyone would read.
  bool many_problems() const { return problems_.size() >= 200; }
  /// Throws one Error with all problems, ordered by line.
  void throw_problems() const;

  const std::string& file() const { return file_; }

  std::vector<std::string> no_effect, warnings;     ///< of the recipe
  std::map<std::string, std::string> interpolated;  ///< of the recipe

 private:
  struct Problem {
    int line;
    std::string message;
  };
  const std::string& file_;
  const Value& root_;
  std::vector<Problem> problems_;
  std::set<std::string> faulty_;
  std::map<std::string, std::string> lists_;
};

}  // namespace nemocube::recipe
