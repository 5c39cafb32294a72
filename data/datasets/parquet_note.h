#pragma once
#include <filesystem>
#include <string>

namespace nemocube {

/// A note for the message that a folder lacks a file of rows. Where the folder, or a folder at most three
/// levels below, has a Parquet file, the note names the first such file by path and says that Parquet is not
/// read; otherwise the note is empty. Snapshots of the Hub's data sets have such files. The search ends
/// without an error at a folder that cannot be read.
std::string parquet_note(const std::filesystem::path& folder);

}  // namespace nemocube
