// Mutates the files of adapters. A mutant must be refused with an Error or be read whole.
#include <doctest/doctest.h>

#include <random>

#include "data/peft/peft_directory.h"
#include "data/peft/test_adapters.h"
#include "data/peft/write_peft.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
using Random = std::mt19937;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

/// Changes one place of the first `size` bytes of a text.
void mutate(Random& random, std::string& text, std::size_t size) {
  static const std::vector<std::string> pieces{"null",
                                               "true",
                                               "-1",
                                               "0",
                                               "1e308",
                                               "NaN",
                                               "99999999999999999999",
                                               "9223372036854775807",
                                               "4294967297",
                                               "[]",
                                               "{}",
                                               "\"",
                                               "{",
                                               "]",
                                               ",",
                                               ":",
                                               "\"BF16\"",
                                               "\"F64\"",
                                               "\"I8\"",
                                               "mtp.",
                                               ".base_layer",
                                               ".lora_A",
                                               ".lora_B",
                                               "experts.0.",
                                               "(",
                                               "*",
                                               "\\",
                                               "\xff",
                                               "é",
                                               "\"lora_bias\": true,",
                                               "up_proj",
                                               "layers.1."};
  size = std::min(size, text.size());
  const std::size_t at = below(random, size + 1), length = std::min(below(random, 10), size - at);
  switch (below(random, 4)) {
    case 0:
      text.erase(at, length);
      break;
    case 1:
      text.insert(at, pieces[below(random, pieces.size())]);
      break;
    case 2:
      text.replace(at, length, pieces[below(random, pieces.size())]);
      break;
    default:
      if (at < size) text[at] = static_cast<char>(text[at] ^ (1 << below(random, 8)));
  }
}

struct Adapter {
  std::string config, tensors;
  std::size_t header;  // bytes of `tensors` before their values
};
}  // namespace

TEST_CASE("peft directory: mutants of files are refused or read") {
  const ModelConfig config = adapter_test_config();
  LoraAdapters adapters;
  adapters.modules = {{named("backbone.layers.2.mixer.q_proj"), {4, 8}},
                      {named("backbone.layers.1.mixer.experts.up_proj"), {2, 8}},
                      {named("backbone.layers.1.mixer.experts.down_proj"), {4, 8}},
                      {named("lm_head"), {4, 5}}};
  std::vector<Adapter> sources;
  for (const ExpertForm form : {ExpertForm::stacked, ExpertForm::stacked_peft_0_18, ExpertForm::per_expert}) {
    const TestDir dir;
    write_peft_directory(dir / "out", random_adapters(config, adapters, DType::f32), adapters,
                         {.base_model_name_or_path = "a/b", .experts = form});
    Adapter source{slurp(dir / "out/adapter_config.json"), slurp(dir / "out/adapter_model.safetensors"), 0};
    std::int64_t values = 0;
    const SafetensorsFile file(dir / "out/adapter_model.safetensors");
    for (const StoredTensor& tensor : file.tensors()) values += tensor.bytes();
    source.header = source.tensors.size() - static_cast<std::size_t>(values);
    sources.push_back(std::move(source));
  }

  Random random(11);
  int read = 0, refused = 0;
  for (int i = 0; i < 1200; ++i) {
    CAPTURE(i);
    Adapter mutant = sources[below(random, sources.size())];
    for (std::size_t n = 1 + below(random, 3); n > 0; --n) {
      if (below(random, 2) == 0)
        mutate(random, mutant.config, mutant.config.size());
      else
        mutate(random, mutant.tensors, mutant.header);
    }
    const TestDir dir;
    spit(dir / "adapter_config.json", mutant.config);
    spit(dir / "adapter_model.safetensors", mutant.tensors);
    if (i % 4 == 0)
      spit(dir / "automodel_peft_config.json",
           below(random, 2) ? R"({"moe_rank_scaling": true})" : mutant.config);
    try {
      const PeftDirectory peft(dir.path(), config);
      for (const std::string& name : peft.tensor_names()) CHECK(peft.tensor(name).numel() > 0);
      for (const auto& [name, module] : peft.adapters().modules) CHECK(std::isfinite(module.scale()));
      ++read;
    } catch (const Error& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK(message.starts_with(dir.path().string()));
      ++refused;
    }
  }
  CHECK(read > 40);
  CHECK(refused > 500);
}
