#pragma once
#include <filesystem>
#include <optional>

#include "data/json/atomic_file.h"

/// checksums.json of a checkpoint: the length and CRC-32C of every other file in it,
///     {"crc32c": {"state.json": {"bytes": 431, "crc32c": "e3069283"}, "model/config.json": ...}}
/// The last file to be written, so a checkpoint that has it is whole.
namespace nemocube {

inline constexpr const char* checksums_file = "checksums.json";

void write_checksums(const std::filesystem::path& checkpoint, const FileSums& sums);

/// Nothing when there is no such file. Throws Error naming it when it is damaged.
std::optional<FileSums> read_checksums(const std::filesystem::path& checkpoint);

/// Throws Error naming the first file that is missing or does not hold what was written.
void check_sums(const std::filesystem::path& checkpoint, const FileSums& sums);

/// Writes a file into a checkpoint that is in place already, and its sum. Whenever the process ends, no sum
/// is left that belongs to another text than that of its file.
void add_file(const std::filesystem::path& checkpoint, const std::string& name, std::string_view text);

}  // namespace nemocube
