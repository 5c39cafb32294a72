#include "data/hf/hub_cache.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "core/environment.h"
#include "core/error.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

/// The revision in refs/main; empty where there is no such file, or where its text is no name of a folder.
std::string main_revision(const fs::path& folder) {
  std::ifstream in(folder / "refs" / "main");
  std::string revision;
  in >> revision;
  return revision.find('/') == std::string::npos && !revision.starts_with('.') ? revision : "";
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none))
    if (entry.is_directory(none)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

}  // namespace

bool looks_like_hub_name(const std::string& text) {
  const auto slash = text.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string::npos && text[0] != '.' && text[0] != '~';
}

fs::path hub_cache() {
  if (const char* cache = environment_variable("HF_HUB_CACHE")) return cache;
  if (const char* home = environment_variable("HF_HOME")) return fs::path(home) / "hub";
  if (const char* cache = environment_variable("XDG_CACHE_HOME"))
    return fs::path(cache) / "huggingface" / "hub";
  const char* home = environment_variable("HOME");
  return fs::path(home ? home : "") / ".cache" / "huggingface" / "hub";
}

fs::path path_or_cached(const fs::path& named, HubKind kind) {
  const std::string name = named.string();
  std::error_code unclear;
  if (!looks_like_hub_name(name) || fs::exists(named, unclear) || unclear) return named;
  const std::size_t slash = name.find('/');
  const fs::path folder = hub_cache() / cat(kind == HubKind::model ? "models--" : "datasets--",
                                            name.substr(0, slash), "--", name.substr(slash + 1));
  const std::string revision = main_revision(folder);
  if (!revision.empty() && fs::is_directory(folder / "snapshots" / revision, unclear))
    return folder / "snapshots" / revision;
  const std::vector<fs::path> snapshots = folders_in(folder / "snapshots");
  if (snapshots.empty()) return named;
  std::string all;
  for (const fs::path& snapshot : snapshots)
    all += cat(all.empty() ? "" : ", ", snapshot.filename().string());
  require(snapshots.size() == 1, name, ": ", folder.string(), " holds ", snapshots.size(),
          " snapshots and no refs/main that names one: ", all, "; want the path of one of them");
  return snapshots.front();
}

}  // namespace nemocube
