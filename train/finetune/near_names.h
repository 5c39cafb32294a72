#pragma once
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"

namespace nemocube {

/// The names that have the most words of `wanted` in them, at most three, with
/// commas. Dots and other signs separate words.
std::string near_names(std::span<const std::string> names, std::string_view wanted);

/// For the end of a message about a pattern that names modules of multi-token prediction where these are not
/// trained; else empty.
std::string mtp_hint(const ModelSetup& setup, std::string_view pattern);

}  // namespace nemocube
