#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "data/files/on_bytes.h"
#include "data/json/atomic_file.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// Compares files below `directory` with their sums. Returns a text for each damaged file, in
/// the order of `sums`. The text names the file and says that it is missing or unreadable,
/// shorter or longer, or has another CRC-32C.
///
/// The files count as one row of bytes, of which every rank reads an equal part. The OpenMP threads of a rank
/// take pieces of its part, and hold a mebibyte each. All ranks of `ranks` call together, with the same sums,
/// and get the same texts; null: one rank.
std::vector<std::string> find_damage(const std::filesystem::path& directory, const FileSums& sums,
                                     Communicator* ranks = nullptr, const OnBytes& on_bytes = {});

}  // namespace nemocube
