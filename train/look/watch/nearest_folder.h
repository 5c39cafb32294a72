#pragma once
#include <filesystem>

namespace nemocube {

/// A guess for a mistyped path: `wanted` with its first missing name replaced by the nearest directory name
/// beside it, followed by the rest of the path as far as it exists. Empty where nothing is near: more than a
/// third of the name differs (edit_distance()).
std::filesystem::path nearest_folder(const std::filesystem::path& wanted);

}  // namespace nemocube
