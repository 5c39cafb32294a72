#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/hf_config.h"
#include "data/json/json.h"
#include "data/peft/merge.h"
#include "data/peft/peft_directory.h"
#include "data/peft/test_adapters.h"
#include "data/peft/write_peft.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Gated experts, whose stack holds two layers of each expert.
ModelConfig gated_config() {
  const Json config = {{"model_type", "qwen3_moe"}, {"vocab_size", 24},         {"hidden_size", 8},
                       {"num_hidden_layers", 2},    {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                       {"num_experts", 3},          {"num_experts_per_tok", 2}, {"moe_intermediate_size", 5}};
  return parse_hf_config(JsonView(config, "config.json"));
}

const std::string experts = "model.layers.1.mlp.experts", stack = experts + ".gate_up_proj",
                  down = experts + ".down_proj";

LoraAdapters adapters_of(const ModelConfig& config, const std::vector<std::string>& modules) {
  LoraAdapters adapters;
  std::int64_t rank = 4;
  for (const std::string& name : modules) adapters.modules[*config.names.find(name)] = {rank--, 8, false};
  adapters.f32 = true;
  adapters.initialisation = LoraInitialisation::kaiming;
  adapters.dropout_position = DropoutPosition::pre;
  return adapters;
}

std::vector<NamedTensor> random_factors(const ModelConfig& config, const LoraAdapters& adapters) {
  std::vector<NamedTensor> tensors;
  for (const auto& [id, module] : adapters.modules) {
    const std::string name = config.text(id);
    const AdaptableWeight w = adaptable_weights(config).at(name);
    for (const char factor : {'A', 'B'}) {
      const Tensor value = Tensor::empty(
          factor == 'A' ? Shape{w.experts, module.rank, w.in} : Shape{w.experts, w.out, module.rank},
          DType::f32, Device::cpu);
      fill_normal(value, RandomStream(5, factor_name(name, factor)), 0, 1);
      tensors.push_back({factor_name(name, factor), value});
    }
  }
  return tensors;
}

std::string peft_name(int expert, const char* layer, char factor) {
  return cat("base_model.model.", experts, '.', expert, '.', layer, ".lora_", factor, ".weight");
}

}  // namespace

TEST_CASE("peft: adapters of gated experts are read again, bit for bit, in every form") {
  const ModelConfig config = gated_config();
  for (const ExpertForm form : {ExpertForm::stacked, ExpertForm::stacked_peft_0_18, ExpertForm::per_expert})
    for (const std::vector<std::string>& modules :
         std::vector<std::vector<std::string>>{{stack}, {down}, {stack, down}}) {
      CAPTURE(static_cast<int>(form));
      const TestDir dir;
      const LoraAdapters adapters = adapters_of(config, modules);
      const std::vector<NamedTensor> tensors = random_factors(config, adapters);
      write_peft_directory(dir / "out", tensors, adapters,
                           {.base_model_name_or_path = {}, .experts = form, .names = config.names});
      const PeftDirectory read(dir / "out", config);
      CHECK(read.adapters() == adapters);
      for (const NamedTensor& tensor : tensors) CHECK_BITS(read.tensor(tensor.name), tensor.value);
    }
}

TEST_CASE("peft: of a gated expert, files that separate experts have two layers with one A") {
  const ModelConfig config = gated_config();
  const LoraAdapters adapters = adapters_of(config, {stack});
  const std::vector<NamedTensor> tensors = random_factors(config, adapters);
  const TestDir dir;
  write_peft_directory(
      dir / "out", tensors, adapters,
      {.base_model_name_or_path = {}, .experts = ExpertForm::per_expert, .names = config.names});
  const SafetensorsFile file(dir / "out/adapter_model.safetensors");
  std::vector<TensorSource> others;
  for (const StoredTensor& stored : file.tensors()) {
    Tensor value = file.tensor(stored);
    const bool changed = stored.name == peft_name(2, "up_proj", 'A');
    if (changed) value.data<float>()[3] += 1;
    others.push_back(source_of(stored.name, value, DType::f32));
  }
  for (int e = 0; e < 3; ++e) {
    const Tensor b = tensors[1].value.select(e);
    CHECK_BITS(file.tensor(peft_name(e, "gate_proj", 'A')), tensors[0].value.select(e));
    CHECK_BITS(file.tensor(peft_name(e, "up_proj", 'A')), tensors[0].value.select(e));
    CHECK_BITS(file.tensor(peft_name(e, "gate_proj", 'B')), b.narrow(0, 0, 5));
    CHECK_BITS(file.tensor(peft_name(e, "up_proj", 'B')), b.narrow(0, 5, 5));
  }
  CHECK(file.tensors().size() == 12);

  // One layer's A differs from the other's.
  std::filesystem::remove(dir / "out/adapter_model.safetensors");
  write_safetensors(dir / "out/adapter_model.safetensors", std::move(others));
  const PeftDirectory differing(dir / "out", config);
  CHECK(message_of([&] { (void)differing.tensor(factor_name(stack, 'A')); }) ==
        cat((dir / "out/adapter_model.safetensors").string(), ": ", peft_name(2, "gate_proj", 'A'), " and ",
            peft_name(2, "up_proj", 'A'), " differ; want the same, because both layers are one weight here"));

  // One layer is missing.
  std::vector<ZerosEntry> entries;
  for (int e = 0; e < 3; ++e)
    for (const char* layer : {"gate_proj", "up_proj"}) {
      if (e == 1 && layer == std::string("gate_proj")) continue;
      entries.push_back({peft_name(e, layer, 'A'), {4, 8}});
      entries.push_back({peft_name(e, layer, 'B'), {5, 4}});
    }
  std::filesystem::remove(dir / "out/adapter_model.safetensors");
  write_zeros(dir / "out/adapter_model.safetensors", entries);
  CHECK(message_of([&] {
          PeftDirectory(dir / "out", config);
        }).find("model.layers.1.mlp.experts.1.gate_proj") != std::string::npos);
}

TEST_CASE("peft: merging changes half of a gated expert's rows in files that separate experts") {
  const ModelConfig config = gated_config();
  const TestDir dir;
  const LoraAdapters adapters = adapters_of(config, {stack});
  const std::vector<NamedTensor> tensors = random_factors(config, adapters);
  write_peft_directory(dir / "out", tensors, adapters,
                       {.base_model_name_or_path = {}, .names = config.names});
  const PeftDirectory adapter(dir / "out", config);
  const WeightChange merge = merge_of(adapter);
  const double scale = adapter.find(stack)->scale();
  for (int half = 0; half < 2; ++half) {
    const Tensor values = Tensor::zeros({5, 8}, DType::f64, Device::cpu);
    merge.apply(stack, {2, half}, values);
    const Tensor a = tensors[0].value.select(2).to(DType::f64), b = tensors[1].value.select(2).to(DType::f64);
    for (std::int64_t row = 0; row < 5; ++row)
      for (std::int64_t column = 0; column < 8; ++column) {
        double want = 0;
        for (std::int64_t r = 0; r < 4; ++r)
          want += b.data<double>()[(half * 5 + row) * 4 + r] * a.data<double>()[r * 8 + column];
        CHECK(values.data<double>()[row * 8 + column] == doctest::Approx(scale * want).epsilon(1e-12));
      }
  }
}
