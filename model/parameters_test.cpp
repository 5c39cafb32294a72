#include "model/parameters.h"

#include <doctest/doctest.h>

#include "model/initialise.h"
#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("parameters: every cut of a tensor draws the same elements as the whole") {
  ModelConfig config = tiny_config("ME*-");
  config.mamba.in_proj_bias = config.mamba.out_proj_bias = config.mlp.bias = config.moe.bias = true;
  for (const Initialisation law : {Initialisation::hf, Initialisation::megatron}) {
    const ParameterStore whole(config, DType::f32, Device::cpu);
    for (const Parameter& p : whole.all()) initialise(p, config, 5, law);

    ModelPart part;
    part.shard = [](const TensorSpec& spec) {
      Shard shard(spec.shape);
      for (int d = 0; d < spec.shape.ndim(); ++d)
        if (spec.shape[d] > 2) shard = shard.cut(d, {{0, 1}, {2, spec.shape[d]}});
      return shard;
    };
    ParameterStore cut(config, DType::f32, Device::cpu, part);
    for (Parameter& p : cut.all()) {
      CAPTURE(p.name);
      CHECK(p.value.shape() == p.shard.shape());
      if (p.own.numel() > 3) {  // as sharded data parallelism does
        p.shard = p.shard.flat({1, p.own.numel() - 1});
        p.own = Tensor::empty({p.shard.numel()}, DType::f32, Device::cpu);
      }
      initialise(p, config, 5, law);
      const Parameter& all = *std::ranges::find(whole.all(), p.name, &Parameter::name);
      const auto want = all.value.to_vector(), got = p.own.to_vector();
      std::size_t compared = 0;
      p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i, ++compared)
          CHECK(got[static_cast<std::size_t>(local + i)] == want[static_cast<std::size_t>(global + i)]);
      });
      CHECK(compared == got.size());
    }
    CHECK(cut.element_count() == whole.element_count());
    CHECK(cut.trainable_count() == whole.trainable_count());
  }
}

TEST_CASE("parameters: a part has the tensors of its blocks and ends") {
  const ModelConfig config = tiny_config("M*-M*-M*-M*-");
  const auto names = [&](const ModelPart& part) {
    const ParameterStore store(config, DType::f32, Device::meta, part);
    CHECK(store.device() == Device::meta);
    std::vector<std::string> all;
    for (const Parameter& p : store.all()) all.push_back(p.name);
    return all;
  };
  const ModelPart first{{{.end_block = 2, .head = false}}, {}};
  const ModelPart middle{{{.first_block = 2, .end_block = 11, .embeddings = false, .head = false}}, {}};
  const ModelPart last{{{.first_block = 11, .embeddings = false}}, {}};
  std::vector<std::string> together;
  for (const ModelPart& part : {first, middle, last})
    for (const std::string& name : names(part)) together.push_back(name);
  CHECK(together == names({}));
  CHECK(names(first).front() == "backbone.embeddings.weight");
  CHECK(names(middle).front() == "backbone.layers.2.norm.weight");
  CHECK(names(last).back() == "lm_head.weight");
}
