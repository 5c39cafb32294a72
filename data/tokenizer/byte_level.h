#pragma once
#include <optional>
#include <string>
#include <string_view>

/// The byte alphabet of byte-level vocabularies: each byte is written as one printable character. 0x21-0x7E,
/// 0xA1-0xAC and 0xAE-0xFF are written as themselves, the other 68 bytes in order as U+0100, U+0101, ...
namespace nemocube::tok {

char32_t byte_to_character(unsigned char byte);

/// Bytes spelled by `token`; nothing when it has a character outside the alphabet. pre: valid UTF-8
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace nemocube::tok
