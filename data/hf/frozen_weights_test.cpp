#include "data/hf/frozen_weights.h"

#include <doctest/doctest.h>

#include "data/hf/hf_weights.h"
#include "data/json/test_dir.h"
#include "data/safetensors/writer.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

void write_weights(const fs::path& directory, const std::vector<std::string>& names, float value) {
  fs::create_directories(directory);
  std::vector<TensorSource> sources;
  std::vector<Tensor> kept;
  for (const std::string& name : names) {
    kept.push_back(Tensor::empty({3}, DType::f32, Device::cpu));
    kept.back().fill(value);
    sources.push_back(source_of(name, kept.back(), DType::f32));
  }
  write_safetensors(directory / "model.safetensors", std::move(sources));
}

std::string fault(const fs::path& directory) {
  return message_of([&] { HfWeights weights(directory); });
}

}  // namespace

TEST_CASE("frozen weights: tensors that a directory leaves to another one are read from there") {
  const TestDir dir;
  write_weights(dir / "base", {"backbone.norm_f.weight", "lm_head.weight"}, 1);
  write_weights(dir / "part", {"lm_head.weight"}, 2);
  const FrozenWeights frozen{dir / "base", {"backbone.norm_f.weight"}};
  spit(dir / "part" / FrozenWeights::file_name, to_json_text(frozen));
  CHECK(read_frozen_weights(dir / "part")->base == frozen.base);
  CHECK(read_frozen_weights(dir / "part")->tensors == frozen.tensors);
  CHECK_FALSE(read_frozen_weights(dir / "base"));
  const Tensor norm = Tensor::zeros({3}, DType::f32, Device::cpu), head = norm.clone();
  HfWeights(dir / "part")
      .read(std::vector<NamedTensor>{{"backbone.norm_f.weight", norm}, {"lm_head.weight", head}});
  CHECK(norm.to_vector() == std::vector<double>{1, 1, 1});
  CHECK(head.to_vector() == std::vector<double>{2, 2, 2});
}

TEST_CASE("frozen weights: a copy of one file and of shards elsewhere can be read") {
  const TestDir dir;
  const Tensor ones = Tensor::empty({3}, DType::f32, Device::cpu);
  ones.fill(1);
  fs::create_directories(dir / "base");
  FileShards shards;
  shards["model-00001-of-00002.safetensors"].push_back(source_of("backbone.norm_f.weight", ones, DType::f32));
  shards["model-00002-of-00002.safetensors"].push_back(source_of("lm_head.weight", ones, DType::f32));
  write_safetensors_model(dir / "base", std::move(shards));
  write_weights(dir / "part", {"lm_head.weight"}, 2);
  spit(dir / "part" / FrozenWeights::file_name, to_json_text({dir / "base", {"backbone.norm_f.weight"}}));
  const Tensor norm = Tensor::zeros({3}, DType::f32, Device::cpu), head = norm.clone();
  const std::vector<NamedTensor> tensors{{"backbone.norm_f.weight", norm}, {"lm_head.weight", head}};
  const HfWeights weights(dir / "part");
  weights.read(tensors);
  save_hf_weights(dir / "copy", tensors, weights.files(tensors));
  head.fill(0);
  HfWeights(dir / "copy").read(tensors);
  CHECK(norm.to_vector() == std::vector<double>{1, 1, 1});
  CHECK(head.to_vector() == std::vector<double>{2, 2, 2});

  // Files of these names may be there already.
  write_weights(dir / "next", {"lm_head.weight"}, 3);
  fs::create_directories(dir / "again");
  FileShards names;
  names["model-trained.safetensors"].push_back(source_of("backbone.norm_f.weight", ones, DType::f32));
  names["model-trained-2.safetensors"].push_back(source_of("backbone.other.weight", ones, DType::f32));
  write_safetensors_model(dir / "again", std::move(names));
  spit(dir / "next" / FrozenWeights::file_name,
       to_json_text({dir / "again", {"backbone.norm_f.weight", "backbone.other.weight"}}));
  const Tensor other = Tensor::zeros({3}, DType::f32, Device::cpu);
  const std::vector<NamedTensor> all{tensors[0], tensors[1], {"backbone.other.weight", other}};
  const HfWeights next(dir / "next");
  next.read(all);
  save_hf_weights(dir / "last", all, next.files(all));
  for (const NamedTensor& t : all) t.value.fill(0);
  HfWeights(dir / "last").read(all);
  CHECK(norm.to_vector() == std::vector<double>{1, 1, 1});
  CHECK(other.to_vector() == std::vector<double>{1, 1, 1});
  CHECK(head.to_vector() == std::vector<double>{3, 3, 3});
}

TEST_CASE("frozen weights: a file that cannot be followed is refused") {
  const TestDir dir;
  write_weights(dir / "base", {"backbone.norm_f.weight"}, 1);
  write_weights(dir / "part", {"lm_head.weight"}, 2);
  const fs::path file = dir / "part" / FrozenWeights::file_name;
  const auto with = [&](const std::string& text) {
    spit(file, text);
    return fault(dir / "part");
  };
  const auto said = [&](const fs::path& base, const std::string& tensor) {
    return with(to_json_text({base, {tensor}}));
  };
  CHECK(said(dir / "gone", "backbone.norm_f.weight") ==
        cat(file.string(), ": base_model_name_or_path: ", (dir / "gone").string(),
            " does not exist; the weights that were not trained are there"));
  CHECK(said(dir / "base", "backbone.other") ==
        cat(file.string(), ": ", (dir / "base").string(), " has no tensor for 'backbone.other'"));
  CHECK(said(dir / "part", "lm_head.weight").find("leaves weights to another directory as well") !=
        std::string::npos);
  write_weights(dir / "both", {"lm_head.weight"}, 1);
  CHECK(said(dir / "both", "lm_head.weight") ==
        cat(file.string(), ": the directory has a tensor for 'lm_head.weight' itself"));
  for (const char* text :
       {"[]", "{}", "{\"base_model_name_or_path\": 3}", "{", R"({"base_model_name_or_path": "x"})",
        R"({"base_model_name_or_path": "/x", "tensors": [1]})",
        R"({"base_model_name_or_path": "x", "tensors": []})"}) {
    CAPTURE(text);
    CHECK(with(text).find(file.string()) != std::string::npos);
  }
}
