#include "data/safetensors/format.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/rng.h"
#include "data/json/test_dir.h"

using namespace nemocube;

namespace {
/// The header in a heap block of exactly its size, so that AddressSanitizer sees every step beyond it.
SafetensorsHeader parse(const std::string& file) {
  const auto size = static_cast<std::int64_t>(file.size());
  std::uint64_t first = 0;
  std::memcpy(&first, file.data(), std::min<std::size_t>(file.size(), 8));
  const auto length = static_cast<std::size_t>(safetensors_header_length(first, size, "x.st"));
  const auto block = std::make_unique<char[]>(length);
  std::memcpy(block.get(), file.data() + 8, length);
  return parse_safetensors_header({block.get(), length}, size, "x.st");
}

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

void check_refused(const std::string& header, const std::string& data, const char* text) {
  CAPTURE(header.substr(0, 200));
  CHECK_THROWS_WITH_AS(parse(file_of(header, data)), doctest::Contains(text), Error);
}

// Two tensors in 132 bytes: "a" F32 [1, -2] and "b" BF16 [[1, -2]].
const std::string worked_header =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}} )";
const std::string worked_data{"\x00\x00\x80\x3f\x00\x00\x00\xc0\x80\x3f\x00\xc0", 12};
}  // namespace

TEST_CASE("safetensors format: the worked example") {
  const std::string file = file_of(worked_header, worked_data);
  REQUIRE(file.size() == 132);
  CHECK(file.substr(0, 8) == std::string("\x70\0\0\0\0\0\0\0", 8));
  const SafetensorsHeader header = parse(file);
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.data_begin == 120);
  CHECK(header.metadata.empty());
  CHECK(header.tensors[0].name == "a");
  CHECK(describe(header.tensors[0]) == "F32 [2]");
  CHECK(header.tensors[1].name == "b");
  CHECK(describe(header.tensors[1]) == "BF16 [1, 2]");
  CHECK(header.tensors[1].begin == 8);
  CHECK(header.tensors[1].end == 12);
  CHECK(format_safetensors_header(header.tensors, {}) == file.substr(0, 120));
}

TEST_CASE("safetensors format: names that a terminal would obey are refused") {
  const std::string rest = R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  check_refused(R"({"a\u001b[2J)" + rest, "",
                R"(want printable tensor names of at most 200 bytes, got 'a\u001b[2J')");
  check_refused("{\"" + std::string(300, 'n') + rest, "", "(300 bytes)");
  CHECK(parse(file_of("{\"Gr\u00f6\u00dfe" + rest, "")).tensors.size() == 1);
}

TEST_CASE("safetensors format: names of dtypes") {
  CHECK(stored_name(DType::bf16) == "BF16");
  for (DType d : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    CHECK(dtype_of_stored(stored_name(d)) == d);
    CHECK(stored_bits(stored_name(d)) == 8 * size_of(d));
  }
  CHECK_FALSE(dtype_of_stored("F16").has_value());
  CHECK(stored_bits("F6_E2M3") == 6);
  CHECK(stored_bits("f32") == 0);
}

TEST_CASE("safetensors format: what is allowed") {
  CHECK(parse(file_of("{}", "")).tensors.empty());
  CHECK(parse(file_of("  {} \n", "")).tensors.empty());
  const SafetensorsHeader h = parse(file_of(
      R"({"z":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4],
          "more":1},"f":{"dtype":"F4","shape":[2,3],"data_offsets":[4,7]},"__metadata__":{"format":"pt"}})",
      "1234567"));
  CHECK(h.tensors.size() == 3);
  CHECK(h.tensors[0].name == "s");
  CHECK(h.tensors[2].name == "f");
  CHECK(h.metadata.at("format") == "pt");
}

TEST_CASE("safetensors format: every check, in order") {
  CHECK_THROWS_WITH_AS(parse(""), doctest::Contains("got 0 bytes (too small"), Error);
  CHECK_THROWS_WITH_AS(parse("1234567"), doctest::Contains("got 7 bytes (too small"), Error);
  CHECK_THROWS_WITH_AS(parse(std::string(16, '\xff')), doctest::Contains("want at most 100000000"), Error);
  CHECK_THROWS_WITH_AS(parse(std::string("\x09\0\0\0\0\0\0\0{}", 10)),
                       doctest::Contains("beyond the file of 10"), Error);
  check_refused("{", "", "x.st: header: not valid JSON at byte 2");
  check_refused("[]", "", "want an object, got a list");
  check_refused("{} x", "", "not valid JSON");
  check_refused("{\"\xff\":1}", "", "not valid JSON");
  check_refused(std::string(100000, '['), "", "nested deeper than 4");
  check_refused(R"({"a":1})", "", "'a': want an object, got 1");
  check_refused(R"({"a":{"shape":[],"data_offsets":[0,4]}})", "1234", "'a.dtype': want a value, got none");
  check_refused(R"({"a":{"dtype":"F33","shape":[],"data_offsets":[0,4]}})", "1234",
                "the name of a dtype, got \"F33\"");
  check_refused(R"({"a":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", "1234", "'a.shape': want a list");
  check_refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234", "at least 0, got -1");
  check_refused(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "1234",
                "want an integer, got 1.0");
  check_refused(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0]}})", "1234",
                "want a list of begin and end");
  check_refused(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,"4"]}})", "1234", "'a.data_offsets[1]'");
  check_refused(R"({"__metadata__":{"x":1}})", "", "'__metadata__.x': want a string, got 1");
  CHECK(parse_safetensors_header(R"({"__metadata__":null})", 8 + 21, "x").metadata.empty());
  check_refused(R"({"__metadata__":[]})", "", "'__metadata__': want an object");
  check_refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      "12", "the key \"a\" appears twice");
  check_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "12",
                "tensor 'a' begins at byte 1 of the data, want 0 (gap)");
  check_refused(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
      "123", "tensor 'b' begins at byte 1 of the data, want 2 (overlap)");
  check_refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", "12",
                "data_offsets end (0) before");
  check_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234",
                "want 8 bytes, data_offsets give 4");
  check_refused(R"({"a":{"dtype":"F6_E2M3","shape":[3],"data_offsets":[0,2]}})", "12",
                "do not fill whole bytes");
  check_refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", "1234",
                "too large to count");
  check_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", "",
                "too large to count");
  check_refused(R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,0]}})", "",
                "want an integer");
  check_refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "1",
                "want 2 bytes of data after the header, got 1 (file cut off?)");
  check_refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "123",
                "want 2 bytes of data after the header, got 3");
}

TEST_CASE("safetensors format: a header too large for the format is not written") {
  const StoredTensor t{std::string(1 << 20, 'n'), "U8", {}, 0, 1};
  const std::vector<StoredTensor> many(100, t);
  CHECK_THROWS_WITH_AS(format_safetensors_header(many, {}), doctest::Contains("use smaller shards"), Error);
}

TEST_CASE("safetensors format: names with quotes, backslashes and UTF-8 survive") {
  const std::vector<StoredTensor> tensors{{"a\"b\\c\xc3\xa9", "U8", {1}, 0, 1}};
  const std::string head = format_safetensors_header(tensors, {{"k\"", "v\\"}});
  CHECK(head.size() % 8 == 0);
  const SafetensorsHeader back = parse(head + "x");
  CHECK(back.tensors.at(0).name == tensors[0].name);
  CHECK(back.metadata.at("k\"") == "v\\");
}

TEST_CASE("safetensors format: cut off at every byte") {
  const std::string file = file_of(worked_header, worked_data);
  for (std::size_t n = 0; n < file.size(); ++n) CHECK_THROWS_AS(parse(file.substr(0, n)), Error);
  CHECK_THROWS_AS(parse(file + "x"), Error);
}

TEST_CASE("safetensors format: random damage is refused or harmless") {
  const std::string intact = file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b.c":{"dtype":"BF16","shape":[1,2],"data_offsets":[24,28]},"d":{"dtype":"I64","shape":[],"data_offsets":[28,36]}})",
      std::string(36, 'd'));
  const std::size_t header_end = intact.size() - 36;
  const RandomStream random(20, "safetensors damage");
  int refused = 0, harmless = 0;
  const std::string likely = "0123456789[]{},:\"-FBUI. ";
  for (std::uint64_t i = 0; i < 6000; ++i) {
    std::string file = intact;
    const std::uint64_t changes = 1 + random.below(16 * i, 3);
    for (std::uint64_t k = 0; k < changes; ++k) {
      const std::size_t at = random.below(16 * i + 4 * k + 1, header_end);
      const std::uint64_t what = random.below(16 * i + 4 * k + 2, 4);
      if (what == 0)
        file[at] = static_cast<char>(random.below(16 * i + 4 * k + 3, 256));
      else if (what == 1)
        file[at] = likely[random.below(16 * i + 4 * k + 3, likely.size())];
      else if (what == 2)
        file[at] = static_cast<char>(file[at] ^ (1 << random.below(16 * i + 4 * k + 3, 8)));
      else
        file.erase(at, 1);
    }
    try {
      const SafetensorsHeader header = parse(file);
      std::int64_t next = 0;
      for (const StoredTensor& t : header.tensors) {
        if (t.begin != next || t.end < t.begin) FAIL("tensors do not tile the data");
        next = t.end;
      }
      if (header.data_begin + next != static_cast<std::int64_t>(file.size()))
        FAIL("tensors do not fill the file");
      ++harmless;
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 4000);
  CHECK(harmless > 50);
}
