#pragma once
#include <filesystem>
#include <string>

namespace nemocube {

/// Throws Error, naming checkpoint.checkpoint_dir, when a run could not write files below `directory`. The
/// directory and the folders above it need not exist yet. Creates nothing.
void check_run_directory(const std::filesystem::path& directory);

/// The same for a folder of other files, which the recipe's key `key` names and which need not exist yet.
void check_folder_for_files(const std::string& key, const std::filesystem::path& directory);

/// The kind of links, in words, that a directory gets that may not exist yet (data/files/link.h).
std::string kind_of_links(const std::filesystem::path& directory);

}  // namespace nemocube
