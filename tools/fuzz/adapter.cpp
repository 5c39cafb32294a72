// The configs of adapters. Input: adapter_config.json, and behind a NUL byte automodel_peft_config.json.
#include "data/peft/peft_config.h"
#include "tools/fuzz/json_mutator.h"

using namespace nemocube;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const std::string_view input = fuzz::text_of(data, size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  folder.write(peft_config_name, input.substr(0, end));
  std::filesystem::remove(folder.path() + "/" + automodel_config_name);
  if (end < input.size()) folder.write(automodel_config_name, input.substr(end + 1));
  return fuzz::keep_if(fuzz::allow_refusal([&] {
    const PeftConfig config = read_peft_config(folder.path());
    for (const char* path : {"base_model.model.backbone.layers.0.mixer.in_proj", "lm_head"}) {
      fuzz::want(config.rank_of(path) > 0);
      config.alpha_of(path);
    }
  }));
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t longest,
                                               unsigned seed) {
  const std::size_t end = std::min(fuzz::text_of(data, size).find('\0'), size);
  if (end < size && seed % 3 == 0) return fuzz::mutate_json(data, size, longest, seed, end + 1, size);
  return fuzz::mutate_json(data, size, longest, seed, 0, end);
}
