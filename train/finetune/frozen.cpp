#include "train/finetune/frozen.h"

#include <algorithm>

#include "core/quote.h"
#include "train/finetune/module_pattern.h"
#include "train/finetune/near_names.h"

namespace nemocube {
namespace {

bool fits_tensor_or_module(const ModulePattern& pattern, std::string_view tensor, const ModelNames& names) {
  for (std::size_t end = tensor.size(); end != tensor.npos && end > 0; end = tensor.rfind('.', end - 1))
    if (pattern.fits(tensor.substr(0, end), names)) return true;
  return false;
}

std::vector<std::string> modules_of(const std::vector<TensorSpec>& specs, const ModelNames& names) {
  std::vector<std::string> modules;
  for (const TensorSpec& spec : specs) modules.push_back(names.text(spec.module));
  return modules;
}

}  // namespace

FrozenTensors frozen_tensors(const ModelSetup& setup, const std::vector<std::string>& patterns) {
  const std::vector<TensorSpec> specs = tensor_specs(setup);
  FrozenTensors frozen;
  for (const std::string& text : patterns) {
    const ModulePattern pattern("freeze", text);
    FrozenTensors::Line& line = frozen.lines.emplace_back(FrozenTensors::Line{.pattern = text});
    for (const TensorSpec& spec : specs) {
      if (spec.buffer || !fits_tensor_or_module(pattern, spec.name, setup.config.names)) continue;
      ++line.tensors;
      line.parameters += spec.shape.numel();
      frozen.names.insert(spec.id);
    }
    require(line.tensors > 0, "freeze: ", quote(text), " fits no module of this model; there are: ",
            near_names(modules_of(specs, setup.config.names), text),
            ", and others (nemocube inspect --model lists all tensors)", mtp_hint(setup, text));
  }
  require(std::ranges::any_of(specs,
                              [&](const TensorSpec& s) { return !s.buffer && !frozen.names.contains(s.id); }),
          "freeze: the patterns fit every module, and nothing is left to train");
  return frozen;
}

}  // namespace nemocube
