#pragma once
#include <filesystem>
#include <string>

namespace nemocube {

/// For the message that a folder lacks a file of rows. Where the folder or a folder below it has a Parquet file, as snapshots of
/// data sets of the Hub have, a text that names the first of them and says that Parquet is not read; else empty.
std::string parquet_note(const std::filesystem::path& folder);

}  // namespace nemocube
