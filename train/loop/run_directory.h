#pragma once
#include <filesystem>

namespace nemocube {

/// Throws Error, naming checkpoint.checkpoint_dir, unless a run could write files below `directory`, which may
/// have to be created with the folders above it. Creates nothing.
void check_run_directory(const std::filesystem::path& directory);

}  // namespace nemocube
