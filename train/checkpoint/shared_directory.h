#pragma once
#include <filesystem>

#include "parallel/comm/communicator.h"

namespace nemocube {

/// Checks that all ranks see the same directory: rank 0 writes a file there, which all ranks read, and
/// removes it. All ranks call together; the directory must exist where rank 0 runs. Throws Error on all
/// ranks, naming the directory, the first rank that does not see the file, and its host.
void check_shared_directory(const std::filesystem::path& directory, Communicator* ranks);

}  // namespace nemocube
