#include "data/safetensors/part_reader.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/safetensors/shard_json.h"
#include "data/safetensors/writer.h"
#include "parallel/comm/together.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Communicator* world() { return &test_world().communicator(); }

/// Ways to divide a matrix among `parts`.
enum class Cut { whole, rows, columns, flat, blocks };
constexpr Cut cuts[] = {Cut::whole, Cut::rows, Cut::columns, Cut::flat, Cut::blocks};

Shard part_of(const Shape& shape, Cut cut, std::int64_t part, std::int64_t parts) {
  const auto range = [&](std::int64_t size) { return Range{part * size / parts, (part + 1) * size / parts}; };
  const Shard whole(shape);
  switch (cut) {
    case Cut::whole:
      return whole;
    case Cut::rows:
      return whole.cut(0, range(shape[0]));
    case Cut::columns:
      return whole.cut(1, range(shape[1]));
    case Cut::flat:
      return whole.flat(range(shape.numel()));
    case Cut::blocks: {  // two pieces of each dimension, of which flat ranges are kept
      const std::int64_t half = shape[0] / 2;
      const Shard cut_twice = whole.cut(0, {{0, half / 2}, {half, half + 1}}).cut(1, {{0, 1}, {2, shape[1]}});
      const std::int64_t count = cut_twice.shape().numel();
      return cut_twice.flat({part * count / parts, (part + 1) * count / parts});
    }
  }
  return whole;
}

Tensor elements_of(const Tensor& whole, const Shard& shard) {
  const Tensor part = Tensor::empty({shard.numel()}, whole.dtype(), Device::cpu);
  shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
    part.narrow(0, local, count).copy_from(whole.reshape({-1}).narrow(0, global, count));
  });
  return part;
}

/// Files of the shared directory that hold a tensor "w" in parts, written by rank 0.
std::vector<StoredPart> store(const SharedDir& dir, const Tensor& whole, const std::vector<Shard>& shards,
                              DType stored = DType::f32) {
  if (test_world().rank() == 0)
    for (std::size_t p = 0; p < shards.size(); ++p)
      write_safetensors(dir / cat("part", p), {source_of("w", elements_of(whole, shards[p]), stored)});
  world()->host_barrier();
  std::vector<StoredPart> parts;
  for (std::size_t p = 0; p < shards.size(); ++p) {
    const auto file = std::make_shared<SafetensorsFile>(dir / cat("part", p));
    parts.push_back({{file, &file->at("w")}, shards[p]});
  }
  return parts;
}

std::vector<Shard> shards_of(const Shape& shape, Cut cut, std::int64_t parts) {
  std::vector<Shard> all;
  for (std::int64_t p = 0; p < (cut == Cut::whole ? 1 : parts); ++p)
    all.push_back(part_of(shape, cut, p, parts));
  return all;
}

}  // namespace

TEST_CASE("parts of tensors: any division is read into any other, each byte once") {
  const std::int64_t rank = test_world().rank(), ranks = test_world().size();
  // Several windows of a file, and one.
  for (const Shape& shape : {Shape{600, 4001}, Shape{7, 9}}) {
    const Tensor whole = random_tensor(shape, DType::f32, 5);
    for (const Cut written : {Cut::whole, Cut::rows, Cut::columns, Cut::flat}) {
      const SharedDir dir;
      const auto parts = store(dir, whole, shards_of(shape, written, 3));
      for (const Cut read : cuts) {
        CAPTURE(shape);
        CAPTURE(static_cast<int>(written));
        CAPTURE(static_cast<int>(read));
        const Shard shard = part_of(shape, read, rank, ranks);
        const Tensor into = Tensor::empty({shard.numel()}, DType::f32, Device::cpu);
        const std::vector<WantedPart> wanted{{"w", shard, into}};
        const BytesRead bytes = read_parts(
            wanted, [&](const WantedPart&) { return parts; }, world());
        CHECK_BITS(into, elements_of(whole, shard));
        const std::int64_t from_files = world()->host_all_reduce(bytes.from_files);
        CHECK(from_files <= whole.bytes());
        if (read != Cut::blocks) CHECK(from_files == whole.bytes());
        if (read == Cut::whole) CHECK(bytes.from_files + bytes.from_ranks == whole.bytes());
      }
    }
  }
}

TEST_CASE("parts of tensors: the dtype and device of what is wanted, and ranks that want nothing") {
  const int rank = test_world().rank();
  const Shape shape{40, 30};
  const Tensor whole = random_tensor(shape, DType::f32, 6);
  const SharedDir dir;
  const auto parts = store(dir, whole, shards_of(shape, Cut::columns, 2), DType::bf16);
  const Tensor stored = whole.to(DType::bf16);
  for (const Device device : {Device::cpu, Device::guard})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const Shard shard = part_of(shape, Cut::rows, rank, test_world().size());
      const bool wants = rank == 0 || rank == 2;
      const Tensor into = wants ? Tensor::empty(shard.shape(), dtype, device) : Tensor::meta(shape, dtype);
      const std::vector<WantedPart> wanted{{"w", shard, into}};
      read_parts(
          wanted, [&](const WantedPart&) { return parts; }, world());
      if (wants) CHECK_BITS(into.to(Device::cpu).reshape({-1}).clone(), elements_of(stored.to(dtype), shard));
    }
}

TEST_CASE(
    "parts of tensors: what no file holds, and files that cannot be read, are named, and no rank waits") {
  const Shape shape{6, 5};
  const Tensor whole = random_tensor(shape, DType::f32, 7);
  const SharedDir dir;
  auto parts = store(dir, whole, shards_of(shape, Cut::rows, 3));
  const auto read = [&] {
    const Tensor into = Tensor::empty(shape, DType::f32, Device::cpu);
    const std::vector<WantedPart> wanted{{"w", Shard(shape), into}};
    return message_of([&] {
      together(world(), [&] {
        read_parts(
            wanted, [&](const WantedPart&) { return parts; }, world());
      });
    });
  };
  CHECK(read() == "no error");
  const StoredPart second = parts[1];
  parts.erase(parts.begin() + 1);
  CHECK(read().find("tensor 'w' [6, 5]: no file holds its elements from 10 on") != std::string::npos);
  parts.push_back({second.at, Shard(shape)});
  CHECK(read().find("part1: F32 [10] of 'w': want 30 elements of [6, 5]") != std::string::npos);
  parts.back() = second;
  world()->host_barrier();
  if (test_world().rank() == 0) std::filesystem::resize_file(dir / "part2", 80);
  world()->host_barrier();
  CHECK(read().find("part2") != std::string::npos);
}

TEST_CASE("shards in JSON") {
  const Shard shards[] = {Shard({4, 6}), Shard({4, 6}).cut(1, {{0, 2}, {4, 6}}),
                          Shard({4, 6}).cut(0, Range{1, 3}).flat({2, 9}), Shard({4, 6}).flat({0, 7}),
                          Shard(Shape{})};
  for (const Shard& shard : shards) {
    const Json json = to_json(shard);
    CHECK(shard_from_json(JsonView(json, "file")) == shard);
  }
  CHECK(dump_json(to_json(shards[2]), -1) == R"({"shape":[4,6],"ranges":[[[1,3]],[[0,6]]],"flat":[2,9]})");
  for (const auto& [text, message] :
       {std::pair{R"({"shape":[4,-6]})", "'shape[1]': want a number of entries"},
        {R"({"shape":[4],"ranges":[]})", "'ranges': want a list for each dimension"},
        {R"({"shape":[4],"ranges":[[[0,5]]]})", "want a part of a tensor"},
        {R"({"shape":[4],"ranges":[[[2,3],[0,1]]]})", "want a part of a tensor"},
        {R"({"shape":[4],"flat":[1,5]})", "want a part of a tensor"},
        {R"({"shape":[4],"flat":[1]})", "the first entry and the one behind the last"},
        {R"({"ranges":[]})", "shape"}}) {
    CAPTURE(text);
    const Json json = parse_json(text, "file");
    CHECK(message_of([&] { shard_from_json(JsonView(json, "file")); }).find(message) != std::string::npos);
  }
}
