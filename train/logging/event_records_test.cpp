#include "train/logging/event_records.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

using namespace nemocube;

namespace {

std::string hex(std::string_view bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

/// The masked CRC at the end of a record.
std::string crc_of(std::string_view payload) {
  const std::string record = event_record(payload);
  return hex(record.substr(record.size() - 4));
}

}  // namespace

// Computed from the definitions in tensorboard's sources; tools/read_events.py reads the same bytes.
TEST_CASE("event files: whole records, byte for byte") {
  CHECK(hex(version_record(1'700'000'000)) ==
        "1800000000000000"
        "a37f4b22"
        "0900000040fc54d9411a0d627261696e2e4576656e743a32"
        "eced8f9d");
  CHECK(hex(scalars_record(1'700'000'001, 300, {{"lm loss", 1.5}})) ==
        "1e00000000000000"
        "d9dc1232"
        "0900004040fc54d94110ac022a100a0e0a076c6d206c6f7373150000c03f"
        "51e1b1ac");
  CHECK(hex(event_record("")) ==
        "0000000000000000"
        "29039807"
        "d8ea82a2");
}

TEST_CASE("event files: the CRC is masked") {
  CHECK(crc_of("\x1A\x11"
               "CRC test, one two") == "8ad09457");  // 0x5794D08A, the low byte first
}

TEST_CASE("event files: a start, further scalars, steps of many bits") {
  const auto payload = [](const std::string& record) { return hex(record.substr(12, record.size() - 16)); };
  CHECK(payload(start_record(1'700'000'000, 300)) ==
        "0900000040fc54d941"
        "10ac02"
        "3a020801");
  CHECK(payload(start_record(1'700'000'000, 0)) ==
        "0900000040fc54d941"
        "3a020801");
  CHECK(payload(scalars_record(0, std::int64_t{1} << 35, {{"a", -2}, {"b", 0.5}})) ==
        "090000000000000000"
        "10808080808001"
        "2a14"
        "0a080a016115000000c0"
        "0a080a0162150000003f");
  CHECK(payload(scalars_record(0, 127, {{"a", std::numeric_limits<double>::infinity()}})) ==
        "090000000000000000"
        "107f"
        "2a0a"
        "0a080a01611500"
        "00807f");
  // A number too large for f32 is shown as infinite, one that is none as NaN.
  CHECK(payload(scalars_record(0, 1, {{"a", 1e300}})).ends_with("0000807f"));
  CHECK(payload(scalars_record(0, 1, {{"a", std::nan("")}})).ends_with("0000c07f"));
  CHECK_THROWS_AS(scalars_record(0, -1, {}), std::logic_error);
}
