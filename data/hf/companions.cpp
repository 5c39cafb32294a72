#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/log.h"
#include "data/files/regular_file.h"
#include "data/hf/hf_weights.h"
#include "data/json/json.h"

namespace nemocube {
namespace {
namespace fs = std::filesystem;

constexpr const char* more_templates = "additional_chat_templates";

bool travels(const std::string& name) {
  constexpr std::string_view known[] = {
      "config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
      "merges.txt",  "chat_template.json"};
  return std::ranges::find(known, name) != std::end(known) || name.ends_with(".py") ||
         name.ends_with(".jinja") ||
         (name.starts_with("tokenizer") && (name.ends_with(".json") || name.ends_with(".model")));
}

/// Whether a file lies in the directory, links resolved, or in the `blobs` of the Hugging Face cache that the
/// directory belongs to: snapshots/REVISION/NAME is a link to blobs/HASH there. Both paths are canonical.
bool belongs_to(const fs::path& directory, const fs::path& file) {
  const auto [left, right] = std::ranges::mismatch(directory, file);
  if (left == directory.end()) return true;
  const fs::path snapshots = directory.parent_path();
  return snapshots.filename() == "snapshots" && file.parent_path() == snapshots.parent_path() / "blobs";
}

/// Whether a link named config.json or tokenizer.json leads to such a file by its contents, and not to any
/// other file that the user may read.
bool is_what_it_says(const std::string& name, const std::string& text) {
  const auto has_any = [&](std::initializer_list<const char*> keys) {
    try {
      const Json document = parse_json(text, name);
      return document.is_object() &&
             std::ranges::any_of(keys, [&](const char* k) { return document.contains(k); });
    } catch (const Error&) {
      return false;
    }
  };
  return name == "config.json" ? has_any({"model_type", "architectures"}) : has_any({"model"});
}

fs::directory_iterator entries_of(const fs::path& directory) {
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  require(!error, directory.string(), ": cannot list: ", error.message());
  return entries;
}

/// The files that travel, as they are found in a directory and its folders.
class Companions {
 public:
  explicit Companions(const fs::path& directory) {
    std::error_code error;
    home_ = fs::canonical(directory, error);
    require(!error, directory.string(), ": cannot resolve: ", error.message());
  }

  /// The files of the directory, or of its folder `folder`, whose names `wanted` accepts.
  void take(const fs::directory_iterator& entries, const std::string& folder,
            bool (*wanted)(const std::string&)) {
    for (const auto& entry : entries) {
      const std::string name = entry.path().filename().string();
      if (wanted(name)) take_file(entry, (fs::path(folder) / name).string());
    }
  }

  std::map<std::string, std::string> files;     ///< contents
  std::map<std::string, std::string> left_out;  ///< what the links lead to

 private:
  void take_file(const fs::directory_entry& entry, const std::string& name) {
    std::error_code error;
    if (entry.is_other(error)) const RegularFile refused(entry.path());  // a FIFO, socket or device
    if (!entry.is_regular_file(error)) return;
    const fs::path target = fs::canonical(entry.path(), error);
    require(!error, entry.path().string(), ": cannot resolve: ", error.message());
    const bool inside = belongs_to(home_, target);
    if (inside || name == "config.json" || name == "tokenizer.json") {
      std::string text = read_text_file(entry.path(), std::int64_t{256} << 20);
      if (inside || is_what_it_says(name, text)) {
        files[name] = std::move(text);
        return;
      }
    }
    left_out[name] = target.string();
  }

  fs::path home_;
};
}  // namespace

std::map<std::string, std::string> read_companion_files(const fs::path& directory) {
  const fs::directory_iterator entries = entries_of(directory);
  Companions found(directory);
  found.take(entries, "", travels);
  const fs::path more = directory / more_templates;
  std::error_code error;
  if (fs::is_directory(more, error))
    found.take(entries_of(more), more_templates,
               [](const std::string& name) { return name.ends_with(".jinja"); });
  const auto& left_out = found.left_out;
  if (left_out.empty()) return std::move(found.files);
  std::string list;
  for (const auto& [name, target] : left_out)
    list += cat(list.empty() ? "" : ", ", brief(name), " (a link to ", brief(target), ")");
  log_warning(directory.string(),
              ": not copied to new models, since they lie outside of the directory: ", list,
              "; put the files themselves there if they belong to the model");
  return std::move(found.files);
}

}  // namespace nemocube
