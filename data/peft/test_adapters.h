#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/rng.h"
#include "data/hf/hf_weights.h"
#include "data/hf/test_config.h"
#include "data/json/test_dir.h"
#include "data/peft/peft_names.h"
#include "data/safetensors/writer.h"
#include "model/lora.h"
#include "model/test_configs.h"

/// Small models, adapters and files of the adapters' tests.
namespace nemocube::testing {

/// `inner`: the width of the experts. The hidden states have 8 channels.
inline ModelConfig adapter_test_config(std::int64_t inner = 6) {
  ModelConfig c = small_test_config("ME*-E");
  c.moe.intermediate_size = inner;
  return c;
}

/// Random A and B of every module.
inline std::vector<NamedTensor> random_adapters(const ModelSetup& config, const LoraAdapters& adapters,
                                                DType dtype) {
  std::vector<NamedTensor> tensors;
  const AdaptableWeights weights = adaptable_weights(config);
  for (const auto& [id, module] : adapters.modules) {
    const std::string name = ModelNames().text(id);
    const AdaptableWeight& w = weights.at(name);
    const bool stack = w.experts > 0;
    const Shape a = stack ? Shape{w.experts, module.rank, w.in} : Shape{module.rank, w.in},
                b = stack ? Shape{w.experts, w.out, module.rank} : Shape{w.out, module.rank};
    for (const char factor : {'A', 'B'}) {
      const Tensor value = Tensor::empty(factor == 'A' ? a : b, dtype, Device::cpu);
      fill_normal(value, RandomStream(5, factor_name(name, factor)), 0, 1);
      tensors.push_back({factor_name(name, factor), value});
    }
  }
  return tensors;
}

/// A file's tensor of zeros.
struct ZerosEntry {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
};
inline void write_zeros(const std::filesystem::path& path, const std::vector<ZerosEntry>& entries) {
  std::vector<TensorSource> sources;
  for (const ZerosEntry& entry : entries)
    sources.push_back(
        source_of(entry.name, Tensor::zeros(entry.shape, entry.dtype, Device::cpu), entry.dtype));
  write_safetensors(path, std::move(sources));
}

}  // namespace nemocube::testing
