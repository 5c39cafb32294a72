#include "data/hf/with_scales.h"

#include <algorithm>
#include <iterator>

#include "data/safetensors/quantized.h"

namespace nemocube {
namespace {

bool is_of_activations(std::string_view name) {
  constexpr std::string_view endings[] = {".input_scale", ".activation_scale", ".k_scale",
                                          ".v_scale",     ".k_bias",           ".v_bias"};
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

void refuse_scheme(const std::string& name, const StoredIn& stored) {
  struct Scheme {
    std::string_view ending, title;
  };
  constexpr Scheme schemes[] = {{".pre_quant_scale", "AWQ"},
                                {".weight_packed", "compressed-tensors"},
                                {".weight_global_scale", "compressed-tensors"},
                                {".weight_zero_point", "integers with zero points"},
                                {".qweight", "GPTQ or AWQ"}};
  for (const Scheme& scheme : schemes)
    require(!name.ends_with(scheme.ending), stored.file->path().string(), ": tensor '", name,
            "': the weights are quantized as in ", scheme.title,
            ", which is not supported; want FP8 or NVFP4 as ModelOpt writes them, or plain weights");
}

bool has_codes(const StoredIn& stored) {
  return stored.entry->dtype == "F8_E4M3" || stored.entry->dtype == "U8";
}

/// Takes a tensor out of the list.
StoredIn take(SafetensorsTensors& tensors, const std::string& name) {
  const auto node = tensors.extract(name);
  return node.empty() ? StoredIn() : node.mapped();
}

}  // namespace

SafetensorsTensors with_scales(SafetensorsTensors tensors,
                               const std::function<bool(std::string_view)>& is_of_language) {
  for (const auto& [name, stored] : tensors)
    if (is_of_language(name)) refuse_scheme(name, stored);
  std::erase_if(
      tensors, [&](const auto& item) { return is_of_language(item.first) && is_of_activations(item.first); });
  // Names of scales sort behind the name of their tensor, so no iterator ahead is lost.
  for (auto& [name, stored] : tensors) {
    if (!name.ends_with(".weight") || !has_codes(stored)) continue;
    const ScaleTensors scales{take(tensors, name + "_scale"), take(tensors, name + "_scale_inv"),
                              take(tensors, name + "_scale_2")};
    if (scales.any()) stored.quantized = std::make_shared<Quantized>(stored, scales);
  }
  return tensors;
}

}  // namespace nemocube
