#pragma once
#include <string>
#include <vector>

namespace nemocube {

/// A key whose value differs between two recipes; empty where the key is absent.
struct KeyDifference {
  std::string key, before, now;
};

/// The keys that differ between two resolved recipes (describe()), in the order of the keys. A section that
/// only one of the recipes has is one difference. A key that only `now` has is no difference if its value is
/// the default: an older program may not have known the key.
/// Throws Error when one of the texts is not YAML.
std::vector<KeyDifference> recipe_differences(const std::string& before, const std::string& now);

}  // namespace nemocube
