#include "data/hf/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "core/environment.h"
#include "core/error.h"
#include "core/quote.h"
#include "data/files/link.h"
#include "data/files/regular_file.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

/// The revision in refs/main; empty where there is no such file.
std::string main_revision(const fs::path& folder) {
  const fs::path file = folder / "refs" / "main";
  std::error_code none;
  if (!fs::exists(file, none)) return "";
  std::string revision = read_text_file(file, 4096);
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back()))) revision.pop_back();
  require(!revision.empty() && revision.find('/') == std::string::npos && !revision.starts_with('.') &&
              fs::is_directory(folder / "snapshots" / revision, none),
          file.string(), ": names no snapshot in ", (folder / "snapshots").string(), ": ", quote(revision));
  return revision;
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
  if (!looks_like_hub_name(name) || fs::exists(named, unclear) || unclear) return through_links(named);
  const std::size_t slash = name.find('/');
  const fs::path folder = hub_cache() / cat(kind == HubKind::model ? "models--" : "datasets--",
                                            name.substr(0, slash), "--", name.substr(slash + 1));
  const std::string revision = main_revision(folder);
  if (!revision.empty()) return folder / "snapshots" / revision;
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
