#include "data/hf/hub_cache.h"

#include <pwd.h>
#include <unistd.h>

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
  require(!revision.empty() && revision.find('/') == std::string::npos &&
              revision.find('\0') == std::string::npos && !revision.starts_with('.') &&
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

namespace {

bool is_of_variable_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// "~" of the user, for whom `name` is empty, or of another one; empty where there is none.
std::string home_of(const std::string& name) {
  if (const char* home = name.empty() ? environment_variable("HOME") : nullptr) return home;
  const ::passwd* entry = name.empty() ? ::getpwuid(::getuid()) : ::getpwnam(name.c_str());
  return entry && entry->pw_dir ? entry->pw_dir : "";
}

std::string with_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const std::size_t end = std::min(path.find('/'), path.size());
  std::string home = home_of(path.substr(1, end - 1));
  if (home.empty()) return path;
  while (home.ends_with('/')) home.pop_back();
  home += path.substr(end);
  return home.empty() ? "/" : home;
}

std::string with_variables(const std::string& path) {
  std::string out;
  for (std::size_t at = 0; at < path.size();) {
    std::size_t begin = at + 1, end = begin, next = begin;
    if (path[at] == '$' && begin < path.size() && path[begin] == '{') {
      const std::size_t brace = path.find('}', begin);
      if (brace != path.npos) ++begin, end = brace, next = brace + 1;
    } else if (path[at] == '$') {
      while (end < path.size() && is_of_variable_name(path[end])) ++end;
      next = end;
    }
    const char* value = end > begin ? variable_named_in_recipe(path.substr(begin, end - begin)) : nullptr;
    out += value ? value : path.substr(at, next - at);
    at = next;
  }
  return out;
}

fs::path expanded(const fs::path& path) { return with_variables(with_home(path.string())); }

fs::path hub_folder(const std::string& name, HubKind kind) {
  const std::size_t slash = name.find('/');
  return hub_cache() / cat(kind == HubKind::model ? "models--" : "datasets--", name.substr(0, slash), "--",
                           name.substr(slash + 1));
}

}  // namespace

fs::path hub_cache() {
  if (const char* cache = environment_variable("HF_HUB_CACHE")) return expanded(cache);
  if (const char* cache = environment_variable("HUGGINGFACE_HUB_CACHE")) return expanded(cache);
  if (const char* home = environment_variable("HF_HOME")) return expanded(home) / "hub";
  const char* cache = environment_variable("XDG_CACHE_HOME");
  return expanded(fs::path(cache ? cache : "~/.cache") / "huggingface") / "hub";
}

std::string not_in_cache(const fs::path& named, HubKind kind) {
  const std::string name = named.string();
  if (!looks_like_hub_name(name)) return "";
  return cat(", nor in the local cache of the Hub (", hub_folder(name, kind).string(), ")");
}

fs::path path_or_cached(const fs::path& named, HubKind kind) {
  const std::string name = named.string();
  std::error_code unclear;
  if (!looks_like_hub_name(name) || fs::exists(named, unclear) || unclear) return through_links(named);
  const fs::path folder = hub_folder(name, kind);
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
