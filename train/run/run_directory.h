#pragma once
#include <filesystem>

namespace nemocube {

/// Throws Error, naming checkpoint.checkpoint_dir, when a run could not write files below `directory`. The
/// directory and the folders above it need not exist yet. Creates nothing.
void check_run_directory(const std::filesystem::path& directory);

}  // namespace nemocube
