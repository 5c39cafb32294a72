#include "data/datasets/parquet_note.h"

#include <system_error>

#include "core/error.h"

namespace nemocube {

namespace fs = std::filesystem;

std::string parquet_note(const fs::path& folder) {
  constexpr int most_levels = 3;  // snapshots need one; a large folder is not searched to its end
  fs::path first;
  std::error_code unclear;
  for (fs::recursive_directory_iterator entry(folder, unclear), end; !unclear && entry != end;
       entry.increment(unclear)) {
    if (entry.depth() >= most_levels) entry.disable_recursion_pending();
    const fs::path& path = entry->path();
    if (path.extension() == ".parquet" && (first.empty() || path < first)) first = path;
  }
  if (first.empty()) return "";
  return cat(
      "; there is ", first.lexically_relative(folder).string(),
      ", but Parquet is not read: want the same rows as JSON or, in a file named .jsonl, as JSON lines");
}

}  // namespace nemocube
