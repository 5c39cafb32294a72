#pragma once
#include <cstdint>
#include <string>

#include "data/json/json.h"

namespace nemocube {

/// A CRC-32C as files of this program spell it: eight hexadecimal digits, "e3069283".
std::string crc_text(std::uint32_t crc);
/// The inverse. Throws Error naming file, place and value for any other text.
std::uint32_t parse_crc(const JsonView& json);

}  // namespace nemocube
