#pragma once
#include <filesystem>

namespace nemocube {

/// What a mistyped path may mean: `wanted` with its first name that is not there replaced by that of the
/// nearest directory beside it, and the names behind it as far as they are there. Empty where nothing is
/// near: more than a third of the name differs (edit_distance()).
std::filesystem::path nearest_folder(const std::filesystem::path& wanted);

}  // namespace nemocube
