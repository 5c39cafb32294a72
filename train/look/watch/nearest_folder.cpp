#include "train/look/watch/nearest_folder.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "train/recipe/words.h"

namespace nemocube {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_names = 10'000;  // of a directory

/// The names of the directories in `folder`, in order.
std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (fs::directory_iterator at(folder.empty() ? "." : folder, none), end;
       !none && at != end && names.size() < most_names; at.increment(none)) {
    std::error_code unclear;
    if (at->is_directory(unclear)) names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

fs::path nearest_folder(const fs::path& wanted) {
  std::error_code none;
  fs::path there;
  bool replaced = false;
  for (const fs::path& part : wanted) {
    if (fs::exists(there / part, none)) {
      there /= part;
      continue;
    }
    if (replaced || part.empty()) break;  // an empty part stands behind a last slash
    const std::string name = part.string(), found = recipe::nearest(name, folders_in(there));
    if (found.empty() || 3 * recipe::edit_distance(name, found) > name.size()) return {};
    there /= found;
    replaced = true;
  }
  return replaced ? there : fs::path();
}

}  // namespace nemocube
