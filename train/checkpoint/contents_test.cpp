#include "train/checkpoint/contents.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/json/test_dir.h"
#include "data/safetensors/shard_json.h"
#include "data/safetensors/writer.h"
#include "tests/support/message_of.h"
#include "train/checkpoint/part_cover.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

/// A file of optim/ with the elements `range` of a tensor "m.w" of 12 elements, counted from `first`.
void write_part(const fs::path& dir, const std::string& name, Range range, float first) {
  const Shard shard = Shard({3, 4}).flat(range);
  const Tensor value = Tensor::empty({range.size()}, DType::f32, Device::cpu);
  for (std::int64_t i = 0; i < range.size(); ++i) value.data<float>()[i] = first + static_cast<float>(i);
  write_safetensors(dir / name, {source_of("m.w", value, DType::f32)},
                    {{"shards", dump_json({{"m.w", to_json(shard)}}, -1)}});
}

}  // namespace

TEST_CASE("part cover: a gap and a contradiction are named, and equal copies are none") {
  const TestDir dir;
  write_part(dir.path(), "a.safetensors", {0, 7}, 0);
  write_part(dir.path(), "b.safetensors", {7, 12}, 7);
  const auto faults = [&](bool compare = true) { return cover_faults(StoredOptimizer(dir.path()), compare); };
  CHECK(faults().empty());
  write_part(dir.path(), "b.safetensors", {8, 12}, 8);
  CHECK(faults() == std::vector<std::string>{"'m.w' [3, 4]: no file holds element 7 of 12"});
  write_part(dir.path(), "b.safetensors", {7, 11}, 7);
  CHECK(faults(false) == std::vector<std::string>{"'m.w' [3, 4]: no file holds element 11 of 12"});
  write_part(dir.path(), "b.safetensors", {5, 12}, 5);
  CHECK(faults().empty());
  write_part(dir.path(), "c.safetensors", {2, 4}, 2);
  CHECK(faults().empty());
  write_part(dir.path(), "c.safetensors", {3, 6}, 9);
  CHECK(faults(false).empty());
  REQUIRE(faults().size() == 1);
  CHECK(faults()[0].find("'m.w' [3, 4]: ") == 0);
  CHECK(faults()[0].find("c.safetensors") != std::string::npos);
  CHECK(faults()[0].find("different values") != std::string::npos);
}

TEST_CASE("part cover: an index that asks for other elements than a file has is refused soon") {
  const TestDir dir;
  const Tensor value = Tensor::zeros({4}, DType::f32, Device::cpu);
  const auto write = [&](const Shard& shard) {
    write_safetensors(dir / "a.safetensors", {source_of("m.w", value, DType::f32)},
                      {{"shards", dump_json({{"m.w", to_json(shard)}}, -1)}});
  };
  constexpr std::int64_t rows = std::int64_t{1} << 40;
  const Shard column = Shard({rows, 2}).cut(1, Range{0, 1});
  write(column);
  CHECK(message_of([&] {
          StoredOptimizer{dir.path()};
        }).find("wants 1099511627776 elements of [1099511627776, 2]") != std::string::npos);
  for (const std::int64_t begin : {std::int64_t{0}, rows - 4}) {
    write(column.flat({begin, begin + 4}));
    CHECK(cover_faults(StoredOptimizer(dir.path()), true) ==
          std::vector<std::string>{cat("'m.w' [1099511627776, 2]: no file holds element ", begin == 0 ? 1 : 0,
                                       " of 2199023255552")});
  }
}

TEST_CASE("part cover: parts with a run for each row") {
  constexpr std::int64_t rows = 100'000;
  const TestDir dir;
  const auto write = [&](const char* name, Range columns, float value) {
    const Shard shard = Shard({rows, 3}).cut(1, columns);
    Tensor values = Tensor::zeros(shard.shape(), DType::f32, Device::cpu);
    values.data<float>()[values.numel() - 1] = value;
    write_safetensors(dir / name, {source_of("m.w", values, DType::f32)},
                      {{"shards", dump_json({{"m.w", to_json(shard)}}, -1)}});
  };
  write("a.safetensors", {0, 1}, 1);
  write("b.safetensors", {1, 3}, 2);
  CHECK(cover_faults(StoredOptimizer(dir.path()), true).empty());
  write("c.safetensors", {2, 3}, 2);
  CHECK(cover_faults(StoredOptimizer(dir.path()), true).empty());
  write("c.safetensors", {2, 3}, 3);
  CHECK(cover_faults(StoredOptimizer(dir.path()), true).at(0).find("from element 299999 on") !=
        std::string::npos);
}

TEST_CASE("find checkpoint: itself, behind links, the newest of a run, and what is none") {
  const TestDir dir;
  const fs::path run = dir / "run", at = run / "epoch_0_step_1";
  fs::create_directories(at / "optim");
  CHECK(find_checkpoint(at) == at);
  CHECK(find_checkpoint(at.string() + "/") == at);
  const auto refusal = [](const fs::path& named) { return message_of([&] { find_checkpoint(named); }); };
  CHECK(refusal(run) ==
        run.string() + ": holds no checkpoint: there is neither state.json nor LATEST/state.json");
  fs::create_directory_symlink("epoch_0_step_1", run / "LATEST");
  CHECK(find_checkpoint(run) == at);
  CHECK(find_checkpoint(run / "LATEST") == at);
  fs::create_directory(run / "model");  // that the run began with
  CHECK(find_checkpoint(run) == at);
  fs::remove(run / "LATEST");
  fs::create_directory_symlink("epoch_0_step_9", run / "LATEST");
  CHECK(refusal(run).starts_with(run.string() + ": holds no checkpoint"));
  CHECK(
      refusal(dir / "none").ends_with("none: want the directory of a checkpoint or of a run, there is none"));
  spit(dir / "file", "x");
  CHECK(refusal(dir / "file").ends_with("got a file"));
}

TEST_CASE("contents: an empty directory gives a fault for each thing that is missing") {
  const TestDir dir;
  const CheckpointContents contents = read_contents(dir.path(), true);
  REQUIRE(contents.faults.size() >= 3);
  std::string all;
  for (const std::string& fault : contents.faults) all += fault + "\n";
  for (const char* what : {"state.json", "model", "optim"})
    CHECK_MESSAGE(all.find((dir / what).string()) != std::string::npos, all);
}
