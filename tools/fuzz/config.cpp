// The configs of models. Input: config.json.
#include "data/hf/hf_config.h"
#include "tools/fuzz/json_mutator.h"

using namespace nemocube;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::keep_if(fuzz::allow_refusal([&] {
    const Json json = parse_json(fuzz::text_of(data, size), "config.json");
    const ModelConfig config = parse_hf_config(JsonView(json, "config.json"));
    const HfConfigFile written = make_hf_config(config);
    const Json again = parse_json(written.text, "written");
    try {
      parse_hf_config(JsonView(again, "written"));
    } catch (const Error&) {
      fuzz::want(false);  // what is accepted is accepted once more where it is written
    }
  }));
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t longest,
                                               unsigned seed) {
  return fuzz::mutate_json(data, size, longest, seed, 0, size);
}
