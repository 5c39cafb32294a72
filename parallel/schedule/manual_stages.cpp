#include <algorithm>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/quote.h"
#include "parallel/schedule/stages.h"

namespace nemocube {
namespace {

constexpr std::string_view setting = "module_fqns_per_model_part";

/// The name without the prefix of the model's body; nothing for a name that has none.
std::optional<std::string_view> name_in_body(std::string_view name) {
  for (const std::string_view prefix : {"backbone.", "model."})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return {};
}

/// N of "layers.N".
std::optional<std::int64_t> block_of(std::string_view name) {
  constexpr std::string_view prefix = "layers.";
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  std::int64_t block = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), block);
  return error == std::errc() && stop == name.data() + name.size() && block >= 0 ? std::optional(block)
                                                                                 : std::nullopt;
}

/// The list that names a module.
struct Module {
  std::string name;  ///< as the list spells it, and before that in the usual way
  std::optional<std::size_t> part;
};

class ModuleMap {
 public:
  explicit ModuleMap(std::int64_t blocks) {
    for (std::int64_t block = 0; block < blocks; ++block)
      blocks_.push_back({cat("backbone.layers.", block), {}});
  }

  /// False for a module without parameters.
  bool add(std::string_view name, std::size_t part) {
    Module* module = nullptr;
    if (name == "lm_head") module = &lm_head_;
    if (const auto inner = name_in_body(name)) {
      if (*inner == "rotary_emb") return false;
      if (*inner == "embeddings" || *inner == "embed_tokens") module = &embeddings_;
      if (*inner == "norm_f" || *inner == "norm") module = &norm_;
      if (const auto block = block_of(*inner)) {
        require(*block < static_cast<std::int64_t>(blocks_.size()), setting, '[', part, "]: ", quote(name),
                ", but the model has ", blocks_.size(), " blocks");
        module = &blocks_[static_cast<std::size_t>(*block)];
      }
    }
    require(
        module, setting, '[', part, "]: unknown module ", quote(name),
        "; want backbone.embeddings, backbone.layers.N, backbone.norm_f, lm_head or backbone.rotary_emb (or "
        "model.embed_tokens, model.layers.N, model.norm, model.rotary_emb)");
    require(!module->part, setting, '[', part, "]: ", quote(name), " is already in list ",
            module->part.value_or(0));
    *module = {std::string(name), part};
    return true;
  }

  /// The stages of `parts` lists.
  std::vector<ModelChunk> stages(std::size_t parts) const {
    check_is_in(embeddings_, 0);
    check_is_in(norm_, parts - 1);
    check_is_in(lm_head_, parts - 1);
    std::vector<ModelChunk> stages(parts, {0, 0, false, false});
    stages.front().embeddings = stages.back().head = true;
    std::size_t part = 0;
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      const std::size_t own = part_of(blocks_[block]);
      if (own < part)
        fail(setting, '[', own, "]: ", quote(blocks_[block].name), ", but ", quote(blocks_[block - 1].name),
             " is in list ", part, "; want blocks in ascending order");
      part = own;
      stages[part].end_block = static_cast<std::int64_t>(block) + 1;
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

  std::vector<Module> blocks_;
  Module embeddings_{"backbone.embeddings", {}}, norm_{"backbone.norm_f", {}}, lm_head_{"lm_head", {}};
};

}  // namespace

ManualStages manual_stages(const std::vector<std::vector<std::string>>& parts, std::int64_t blocks) {
  require(!parts.empty(), setting, " has no lists; want one for each stage");
  ManualStages result;
  ModuleMap modules(blocks);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    bool parameters = false;
    for (const std::string& name : parts[part])
      if (modules.add(name, part))
        parameters = true;
      else
        result.skipped.push_back(name);
    require(parameters, setting, '[', part, "] names no module with parameters");
  }
  result.stages = modules.stages(parts.size());
  return result;
}

}  // namespace nemocube
