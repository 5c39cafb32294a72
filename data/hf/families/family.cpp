#include "data/hf/families/family.h"

#include <algorithm>
#include <array>

#include "data/hf/families/baichuan/baichuan.h"
#include "data/hf/families/decilm/decilm.h"
#include "data/hf/families/falcon_h1/falcon_h1.h"
#include "data/hf/families/gemma/gemma3.h"
#include "data/hf/families/gemma/gemma4.h"
#include "data/hf/families/llama/llama.h"
#include "data/hf/families/mistral/ministral3.h"
#include "data/hf/families/mistral/mistral.h"
#include "data/hf/families/nemotron_h/nemotron_h.h"
#include "data/hf/families/nemotron_labs_diffusion/nemotron_labs_diffusion.h"
#include "data/hf/families/phi/phi.h"
#include "data/hf/families/qwen/qwen2.h"
#include "data/hf/families/qwen/qwen3.h"
#include "data/hf/families/qwen/qwen3_5.h"
#include "data/hf/families/qwen/qwen3_moe.h"

namespace nemocube {

std::span<const Family* const> families() {
  static constexpr std::array all{&nemotron_h_family,
                                  &llama_family,
                                  &mistral_family,
                                  &ministral3_family,
                                  &qwen2_family,
                                  &qwen3_family,
                                  &qwen3_moe_family,
                                  &qwen3_5_family,
                                  &qwen3_5_moe_family,
                                  &decilm_family,
                                  &gemma3_family,
                                  &gemma4_family,
                                  &gemma4_unified_family,
                                  &phi_family,
                                  &baichuan_family,
                                  &falcon_h1_family,
                                  &nemotron_labs_diffusion_family};
  return all;
}

bool is_class_named(std::string_view architecture, std::string_view name) {
  if (!architecture.starts_with(name)) return false;
  const std::string_view rest = architecture.substr(name.size());
  return rest == "ForCausalLM" || rest == "Model";
}

const Family* find_family(const JsonView& config) {
  const auto first = [](auto&& fits) {
    const auto found = std::ranges::find_if(families(), fits);
    return found == families().end() ? nullptr : *found;
  };
  if (const auto type = config.find("model_type"))
    return first([&](const Family* family) { return family->model_type == type->string(); });
  const auto classes = config.find("architectures");
  if (!classes) return nullptr;
  for (const JsonView& name : classes->elements())
    if (const Family* family = first([&](const Family* f) { return f->has_class(name.string()); }))
      return family;
  return nullptr;
}

const Family& family_of(const ModelConfig& config) {
  const auto found = std::ranges::find(families(), &config.names.table(), &Family::names);
  expect(found != families().end(), "a config with names of no family");
  return **found;
}

std::string model_types() {
  std::string text;
  for (const Family* family : families())
    text += cat(text.empty()                  ? ""
                : family == families().back() ? " or "
                                              : ", ",
                '"', family->model_type, '"');
  return text;
}

std::vector<std::string> tp_plan_names() {
  std::vector<std::string> names;
  for (const Family* family : families())
    for (const std::string_view name : family->tp_plans)
      if (std::ranges::find(names, name) == names.end()) names.emplace_back(name);
  return names;
}

}  // namespace nemocube
