#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

/// The text of a YAML scalar as a number or a switch.
namespace nemocube::recipe {

/// Decimal numbers as YAML and Python write them: 1, -2, 1_000, 1e-8, .5, .inf, -.inf, inf. Returns nothing
/// for other text, including nan and 010.
std::optional<double> parse_real(std::string_view text);
/// The same for integers within 64 bits; 1e3 and 20.0 are integers.
std::optional<std::int64_t> parse_integer(std::string_view text);
/// true/false, yes/no, on/off in any case.
std::optional<bool> parse_flag(std::string_view text);
/// YAML's null: no text, ~, or null in any case.
bool means_null(std::string_view text);

}  // namespace nemocube::recipe
