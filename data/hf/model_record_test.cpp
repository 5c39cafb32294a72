#include "data/hf/model_record.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/json/test_dir.h"
#include "data/safetensors/writer.h"

using namespace nemocube;
using namespace nemocube::testing;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t elements = 8192;  // of a tensor, 32 KiB

/// Two tensors of ones, of which the second has `value` at one place.
void write_tensors(const fs::path& file, std::int64_t place, float value, const char* name = "b") {
  const Tensor a = Tensor::empty({elements}, DType::f32, Device::cpu), b = a.clone();
  a.fill(1);
  b.fill(1);
  b.data<float>()[place] = value;
  std::vector<TensorSource> sources;
  sources.push_back(source_of("a", a, DType::f32));
  sources.push_back(source_of(name, b, DType::f32));
  write_safetensors(file, std::move(sources));
}

}  // namespace

TEST_CASE("model record: the sampled sum of a file sees the middle of each tensor, and names") {
  const TestDir dir;
  const auto sum = [&](std::int64_t place, float value, const char* name = "b") {
    write_tensors(dir / "x.safetensors", place, value, name);
    return sampled_sum(dir / "x.safetensors");
  };
  const std::uint32_t ones = sum(0, 1);
  CHECK(sum(0, 1) == ones);
  CHECK(sum(elements / 2, 2) != ones);
  CHECK(sum(elements / 2 - 512, 2) != ones);
  CHECK(sum(elements / 2 + 511, 2) != ones);
  CHECK(sum(0, 2) == ones);  // not in a sample
  CHECK(sum(0, 1, "c") != ones);
}

TEST_CASE("model record: it is the same after it was written and read") {
  const TestDir dir;
  spit(dir / "config.json", "{}");
  write_tensors(dir / "model.safetensors", 0, 1);
  ModelRecord record = record_of_model(dir.path());
  CHECK(record.files.size() == 2);
  CHECK(record.files.at("config.json").crc32c == sum_of("{}").crc32c);
  CHECK(record.files.at("model.safetensors").sampled == sampled_sum(dir / "model.safetensors"));
  CHECK_FALSE(record.files.at("model.safetensors").crc32c);
  record.name = "nvidia/N";
  record.revision = "1";
  const Json json = to_json(record);
  const ModelRecord read = model_record_from(JsonView(json, "record"));
  CHECK(to_json(read) == json);
  CHECK(first_difference(record, read).empty());
}

TEST_CASE("model record: differences name the file") {
  const ModelRecord one{"/x", "", "", {{"a", {3, 1, {}}}, {"b", {4, {}, 2}}}};
  ModelRecord other = one;
  CHECK(first_difference(one, other).empty());
  other.files["a"].crc32c = 7;
  CHECK(first_difference(one, other) == "a has other contents of the same length");
  other.files["a"] = {5, 7, {}};
  CHECK(first_difference(one, other) == "a has 5 bytes, the other one had 3");
  other.files = {{"a", {3, 1, {}}}, {"b", {4, 9, 2}}};
  CHECK(first_difference(one, other).empty());  // one of the two knows no sum of all bytes of b
  other.files["b"].sampled = 3;
  CHECK(first_difference(one, other) == "b has other weights of the same length");
  other.files.erase("b");
  CHECK(first_difference(one, other) == "it has no b");
  CHECK(first_difference(other, one) == "it also has b");
}
