#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "data/files/on_bytes.h"
#include "data/json/atomic_file.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// Compares files below `directory` with their sums. Returns what is wrong, a text for each damaged file that
/// names it, in the order of `sums`: that the file is missing or unreadable, shorter or longer, or of another
/// CRC-32C.
///
/// The files are one row of bytes, of which every rank reads an equal part; the OpenMP threads of a rank take
/// pieces of it, and hold a mebibyte each. All ranks of `ranks` call together, with the same sums; null: one
/// rank. All get the same texts.
std::vector<std::string> find_damage(const std::filesystem::path& directory, const FileSums& sums,
                                     Communicator* ranks = nullptr, const OnBytes& on_bytes = {});

}  // namespace nemocube
