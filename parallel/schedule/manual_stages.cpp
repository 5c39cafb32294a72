#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/quote.h"
#include "parallel/schedule/stages.h"

namespace nemocube {
namespace {

constexpr std::string_view setting = "module_fqns_per_model_part";

/// The list that names a module.
struct Module {
  std::string name;  ///< as the list spells it, and before that in the usual way
  std::optional<std::size_t> part;
};

class ModuleMap {
 public:
  ModuleMap(std::int64_t blocks, const ModelNames& names)
      : names_(names),
        embeddings_{names.text(embeddings_name()), {}},
        norm_{names.text(final_norm_name()), {}},
        head_{names.text(head_name()), {}} {
    for (std::int64_t layer = 0; layer < names.layers(blocks); ++layer)
      layers_.push_back({names.layer_text(layer), {}});
  }

  void add(std::string_view name, const TensorName& found, std::size_t part) {
    Module* module = nullptr;
    if (found == head_name()) module = &head_;
    if (found == embeddings_name()) module = &embeddings_;
    if (found == final_norm_name()) module = &norm_;
    if (found == block_name(found.block)) {
      require(found.block < std::ssize(layers_), setting, '[', part, "]: ", quote(name),
              ", but the model has ", layers_.size(), names_.layered() ? " layers" : " blocks");
      module = &layers_[static_cast<std::size_t>(found.block)];
    }
    expect(module, "a module that no stage can be given by name: ", name);
    require(!module->part, setting, '[', part, "]: ", quote(name), " is already in list ",
            module->part.value_or(0));
    *module = {std::string(name), part};
  }

  /// The stages of `parts` lists.
  std::vector<ModelChunk> stages(std::size_t parts) const {
    check_is_in(embeddings_, 0);
    check_is_in(norm_, parts - 1);
    check_is_in(head_, parts - 1);
    std::vector<ModelChunk> stages(parts, {0, 0, false, false});
    stages.front().embeddings = stages.back().head = true;
    std::size_t part = 0;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const std::size_t own = part_of(layers_[layer]);
      if (own < part)
        fail(setting, '[', own, "]: ", quote(layers_[layer].name), ", but ", quote(layers_[layer - 1].name),
             " is in list ", part, "; want ", names_.layered() ? "layers" : "blocks", " in ascending order");
      part = own;
      stages[part].end_block = names_.first_block(static_cast<std::int64_t>(layer) + 1);
    }
    for (std::size_t i = 1; i < parts; ++i) {
      stages[i].first_block = stages[i - 1].end_block;
      stages[i].end_block = std::max(stages[i].end_block, stages[i].first_block);
    }
    return stages;
  }

 private:
  static std::size_t part_of(const Module& module) {
    require(module.part.has_value(), setting, ": ", quote(module.name), " is in no list");
    return *module.part;
  }
  static void check_is_in(const Module& module, std::size_t part) {
    require(part_of(module) == part, setting, '[', part_of(module), "]: ", quote(module.name),
            "; want it in list ", part, ", the ", part == 0 ? "first" : "last");
  }

  const ModelNames& names_;
  std::vector<Module> layers_;
  Module embeddings_, norm_, head_;
};

}  // namespace

ManualStages manual_stages(const std::vector<std::vector<std::string>>& parts, std::int64_t blocks,
                           const StageModules& known) {
  require(!parts.empty(), setting, " has no lists; want one for each stage");
  ManualStages result;
  ModuleMap modules(blocks, known.names);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    bool parameters = false;
    for (const std::string& name : parts[part]) {
      if (known.has_no_parameters(name)) {
        result.skipped.push_back(name);
        continue;
      }
      const std::optional<TensorName> found = known.find(name);
      require(found.has_value(), setting, '[', part, "]: unknown module ", quote(name), "; want ",
              known.wanted);
      modules.add(name, *found, part);
      parameters = true;
    }
    require(parameters, setting, '[', part, "] names no module with parameters");
  }
  result.stages = modules.stages(parts.size());
  return result;
}

}  // namespace nemocube
