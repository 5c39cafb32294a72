#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/json/atomic_file.h"

/// checksums.json of a checkpoint: the length and CRC-32C of every other file in it,
///     {"crc32c": {"state.json": {"bytes": 431, "crc32c": "e3069283"}, "model/config.json": ...}}
/// checksums.json is written last, so a checkpoint that has it is complete.
namespace nemocube {

inline constexpr const char* checksums_file = "checksums.json";

void write_checksums(const std::filesystem::path& checkpoint, const FileSums& sums);

/// Returns nothing when the checkpoint has no checksums.json. Throws Error naming the file when it is
/// damaged.
std::optional<FileSums> read_checksums(const std::filesystem::path& checkpoint);

/// The sums in the text of such a file. Throws Error naming `file`.
FileSums parse_checksums(std::string_view text, const std::filesystem::path& file);

/// Messages about a file whose length or CRC-32C has changed since the checkpoint was written.
std::string wrong_length(const std::filesystem::path& file, std::int64_t bytes, const FileSum& want);
std::string wrong_crc(const std::filesystem::path& file, std::uint32_t crc32c, const FileSum& want);

/// Throws Error naming the first file that is missing or differs from its sum.
void check_sums(const std::filesystem::path& checkpoint, const FileSums& sums);

/// Writes a file and its sum into a published checkpoint, unless both are there. Even if the process is
/// killed in between, no sum contradicts its file.
void add_file(const std::filesystem::path& checkpoint, const std::string& name, std::string_view text);

}  // namespace nemocube
