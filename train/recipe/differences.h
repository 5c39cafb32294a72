#pragma once
#include <string>
#include <vector>

namespace nemocube {

/// A key whose value differs between two recipes; empty where the key is absent.
struct KeyDifference {
  std::string key, before, now;
};

/// What differs between two resolved recipes (describe()), in the order of the keys. A key that only the newer
/// one has is no difference where its value is the default: the program that wrote the older one may not have
/// known the key. Throws Error when one of them is no YAML.
std::vector<KeyDifference> recipe_differences(const std::string& before, const std::string& now);

}  // namespace nemocube
