#include <doctest/doctest.h>

#include "data/hf/with_scales.h"
#include "data/safetensors/part_reader.h"
#include "data/safetensors/quantized.h"
#include "tests/support/compare.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
const std::filesystem::path goldens = source_dir() / "tests/goldens/quantized";

/// The share of this rank in rows, in columns, in a flat range, and everything.
std::vector<Shard> shards_of_rank(const Shape& shape) {
  const std::int64_t rank = test_world().rank(), ranks = test_world().size();
  const auto share = [&](std::int64_t size) { return Range{rank * size / ranks, (rank + 1) * size / ranks}; };
  const Shard whole(shape);
  return {whole.cut(0, share(shape[0])), whole.cut(1, share(shape[1])), whole.flat(share(shape.numel())),
          whole};
}
}  // namespace

TEST_CASE("quantized tensors on ranks: each has the values of its part, and the codes are read once") {
  Communicator& world = test_world().communicator();
  const auto file = std::make_shared<SafetensorsFile>(goldens / "codes.safetensors");
  SafetensorsTensors stored;
  for (const StoredTensor& t : file->tensors()) stored.emplace(t.name, StoredIn{file, &t});
  stored = with_scales(std::move(stored));
  const SafetensorsFile values(goldens / "values.safetensors");
  for (const auto& item : stored) {
    const StoredIn& at = item.second;
    CAPTURE(item.first);
    const Tensor want = values.tensor(item.first);
    const std::int64_t codes = at.entry->bytes(), all = bytes_of(at.pieces({0, want.numel()}));
    for (const Shard& shard : shards_of_rank(want.shape())) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor into = Tensor::empty({shard.numel()}, dtype, Device::cpu);
        const std::vector<WantedPart> wanted{{item.first, shard, into}};
        const BytesRead bytes = read_parts(
            wanted,
            [&](const WantedPart&) {
              return std::vector<StoredPart>{{at, Shard(want.shape())}};
            },
            &world);
        shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
          CHECK_BITS(into.narrow(0, local, count).clone(),
                     want.reshape({-1}).narrow(0, global, count).clone().to(dtype));
        });
        const std::int64_t from_files = world.host_all_reduce(bytes.from_files);
        CHECK(from_files >= codes);
        // Ranks whose parts end inside a byte or a block have both read it, with its scales.
        CHECK(from_files <= all + (test_world().size() - 1) * (1 + all - codes));
        if (shard.whole()) CHECK(from_files == all);
      }
    }
  }
}
