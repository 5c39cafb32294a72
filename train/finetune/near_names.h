#pragma once
#include <span>
#include <string>
#include <string_view>

namespace nemocube {

/// The names that have the most words of `wanted` in them, at most three, with commas. Words are what dots and other signs
/// separate.
std::string near_names(std::span<const std::string> names, std::string_view wanted);

}  // namespace nemocube
