#include <doctest/doctest.h>

#include "core/rng.h"
#include "data/hf/hf_weights.h"
#include "model/test_models.h"
#include "tests/support/shared_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Communicator* world() { return &test_world().communicator(); }

std::vector<NamedTensor> whole_model(const ModelConfig& config) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(config)) {
    tensors.push_back({.name = spec.name,
                       .value = Tensor::zeros(spec.shape, DType::f32, Device::cpu),
                       .keep_f32 = spec.keep_f32});
    fill_normal(tensors.back().value, RandomStream(3, spec.name), 0, 1);
  }
  return tensors;
}

NamedTensor part_of(const NamedTensor& whole, const Shard& shard, bool counts) {
  const Tensor part = Tensor::empty({shard.numel()}, DType::f32, Device::cpu),
               all = whole.value.reshape({-1});
  shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
    part.narrow(0, local, count).copy_from(all.narrow(0, global, count));
  });
  return {whole.name,    shard.flat_range() ? part : part.reshape(shard.shape()), shard, counts, {},
          whole.keep_f32};
}

Range share(std::int64_t count) {
  const std::int64_t rank = test_world().rank(), ranks = test_world().size();
  return {rank * count / ranks, (rank + 1) * count / ranks};
}

}  // namespace

TEST_CASE("hf weights of ranks: parts, cuts, copies and stages of a model give the directory of one rank") {
  const ModelConfig config = tiny_config("ME*-");
  const std::vector<NamedTensor> whole = whole_model(config);
  WeightFiles files = default_weight_files(config);
  files.other_files["tokenizer.json"] = "{}";
  SaveOptions half, small;
  half.dtype = DType::bf16;
  small.most_shard_bytes = 3000;
  std::int64_t done = 0, all = 0;  // by the progress of this rank
  small.on_bytes = [&](std::int64_t now, std::int64_t total) { done = now, all = total; };

  std::vector<NamedTensor> flat, columns, copies, shared, stages;
  for (const NamedTensor& t : whole) {
    const Shard shard(t.value.shape());
    flat.push_back(part_of(t, shard.flat(share(t.value.numel())), true));
    const int dim = t.value.ndim() - 1;
    columns.push_back(part_of(t, shard.cut(dim, share(t.value.dim(dim))), true));
    copies.push_back(
        {t.name, t.value, shard, test_world().rank() == test_world().size() - 1, {}, t.keep_f32});
    // A flat part of all but the first element, of which this rank saves its share.
    const std::int64_t edge = test_world().rank() > 0;
    const Range own = share(t.value.numel()), kept{std::min(edge, own.begin), t.value.numel()};
    shared.push_back(part_of(t, shard.flat(kept), true));
    for (const Range& other : {Range{kept.begin, own.begin}, Range{own.end, kept.end}})
      if (other.begin < other.end)
        shared.back().counted_elsewhere.push_back({other.begin - kept.begin, other.end - kept.begin});
    const bool here = std::ssize(stages) % test_world().size() == test_world().rank();
    stages.push_back(here ? t
                          : NamedTensor{.name = t.name,
                                        .value = Tensor::meta(t.value.shape(), DType::f32),
                                        .keep_f32 = t.keep_f32});
  }
  for (const SaveOptions& options : {SaveOptions{}, half, small}) {
    std::map<std::string, std::string> want;
    FileSums want_sums;
    {
      const TestDir alone;
      want_sums = save_hf_weights(alone / "m", whole, files, options);
      want = files_below(alone / "m");
    }
    for (const auto* own : {&flat, &columns, &copies, &shared, &stages}) {
      const SharedDir dir;
      done = all = 0;
      const FileSums sums = save_hf_weights(dir / "m", *own, files, options, world());
      CHECK(sums == want_sums);
      const bool writes = own != &copies || test_world().rank() == test_world().size() - 1;
      if (options.on_bytes && writes) CHECK(all > 10'000);
      CHECK(done == all);
      CHECK(files_below(dir / "m") == want);
      world()->host_barrier();
      CHECK(names_in(dir.path()) == std::vector<std::string>{"m"});
    }
  }
}
